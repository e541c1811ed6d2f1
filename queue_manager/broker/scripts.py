"""Lua scripts of the batched transport.

The keys have kombu's form: a list per queue and priority, a hash of tag → `[message, exchange, routing key]`
(`unacked`), and a sorted set of tag → time of delivery or renewal in Unix seconds (`unacked_index`).
"""

from __future__ import annotations

from queue_manager.core.redis_client import Script

# Takes messages off their lists and registers them as unacknowledged.
#
# KEYS     unacked, unacked_index, then the lists in descending order of priority
# ARGV     prefix of the new tags, maximum number of messages, number of queues, which is that of lists per priority;
#          then per queue the maximum number of its messages; then per list the text that follows a message in its
#          entry, and the priority
# Returns  per message: number of its list, tag, message
#
# Atomic, because a worker that dies between taking and registering would lose the messages. An error undoes nothing, so
# they are registered before they leave their lists. A key that is not a list counts as empty. Lists of one priority get
# equal shares first and the rest afterwards, so that a long list does not delay the others. `filled` is the number of
# lists that may have messages left. Malformed messages are registered unchanged. With allow-oom, because a full server
# must still be drained.
#
# The server notifies a client when a key changes that the client has read since its last change. So the lists are read
# once more at the end if they are empty then.
TAKE_MESSAGES = Script("""#!lua flags=allow-oom
local filled = redis.call('EXISTS', unpack(KEYS, 3))
if filled == 0 then
    return {}
end
local most, together = tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
local taken, index, entries, count, count_of = {}, {}, {}, 0, {}

local function take(list, room)
    local before, queue = count_of[list] or 0, 4 + (list - 1) % together
    room = math.min(room, tonumber(ARGV[queue]))
    local messages = room > 0 and redis.pcall('LRANGE', KEYS[list + 2], -before - room, -before - 1) or {}
    for i = #messages, 1, -1 do
        count = count + 1
        local tag = ARGV[1] .. string.format('-%04d~', count) .. clock[1] .. '@' .. ARGV[together + 2 * list + 3]
        index[2 * count - 1], index[2 * count] = now, tag
        entries[2 * count - 1], entries[2 * count] = tag, '[' .. messages[i] .. ARGV[together + 2 * list + 2]
        taken[3 * count - 2], taken[3 * count - 1], taken[3 * count] = list, tag, messages[i]
    end
    count_of[list] = before + #messages
    ARGV[queue] = ARGV[queue] - #messages
    if #messages > 0 and #messages < room then
        filled = filled - 1
    end
    return #messages
end

for first = 1, #KEYS - 2, together do
    local share = math.max(1, math.floor((most - count) / together))
    local more = {}
    for list = first, first + together - 1 do
        if take(list, math.min(share, most - count)) == share then
            more[#more + 1] = list
        end
    end
    for _, list in ipairs(more) do
        take(list, most - count)
    end
    if filled == 0 then
        break
    end
end
if count > 0 then
    redis.call('ZADD', KEYS[2], unpack(index))
    redis.call('HSET', KEYS[1], unpack(entries))
end
for list, number in pairs(count_of) do
    if number > 0 then
        redis.call('LTRIM', KEYS[list + 2], 0, -number - 1)
    end
end
if count < most then
    redis.call('EXISTS', unpack(KEYS, 3))
end
return taken
""")

# Counts the messages of a queue.
#
# KEYS     the lists of the queue
# Returns  their number
#
# Atomic, because a message must not be missed while it moves between two lists.
COUNT_MESSAGES = Script("""#!lua flags=allow-oom,no-writes
if redis.call('EXISTS', unpack(KEYS)) == 0 then
    return 0
end
local count = 0
for _, list in ipairs(KEYS) do
    count = count + redis.call('LLEN', list)
end
return count
""")

# Changes lists that do not exist, so that the server no longer keeps their names to notify clients.
#
# KEYS     the lists
#
# Atomic, because no worker may take the element.
TOUCH_LISTS = Script("""#!lua flags=allow-oom
for _, list in ipairs(KEYS) do
    redis.call('LPUSH', list, '')
    redis.call('DEL', list)
end
""")

# Renews the registration of messages.
#
# KEYS     unacked_index
# ARGV     tags
#
# Uses the server's clock, which also decides when they are overdue. A removed tag is not added again.
RENEW_UNACKED = Script("""#!lua flags=allow-oom
local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
local index = {}
for i, tag in ipairs(ARGV) do
    index[2 * i - 1], index[2 * i] = now, tag
end
return redis.call('ZADD', KEYS[1], 'XX', unpack(index))
""")

# Puts unacknowledged messages back on the lists they were taken from, oldest first.
#
# KEYS     unacked, unacked_index
# ARGV     separator between queue and priority in the name of a list, seconds after which a message is overdue, maximum
#          number of overdue messages, RPUSH to deliver them next or LPUSH to deliver them last; then the tags to put
#          back, instead of overdue ones
# Returns  number of messages put back; then tags that another transport registered and that only it can put back
#
# Atomic, because a message must be in one place, and several workers restore overdue messages at the same time.
RESTORE_UNACKED = Script("""#!lua flags=allow-oom
local separator, most = ARGV[1], tonumber(ARGV[3])
local tags = {}
if #ARGV > 4 then
    for i = #ARGV, 5, -1 do
        tags[#tags + 1] = ARGV[i]
    end
else
    local clock = redis.call('TIME')
    local overdue = string.format('%.6f', clock[1] + clock[2] / 1000000 - tonumber(ARGV[2]))
    tags = redis.call('ZRANGE', KEYS[2], overdue, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most)
end

-- Sets `redelivered` in one object of the message; stock kombu sets it in both.
local function flagged(message, object)
    local _, opening = string.find(message, '"' .. object .. '":%s*{')
    if not opening then
        return message
    end
    local rest = string.sub(message, opening + 1)
    local comma = string.find(rest, '^%s*}') and '' or ', '
    return string.sub(message, 1, opening) .. '"redelivered": true' .. comma .. rest
end

local function redelivered(message)
    if string.find(message, '"redelivered":%s*true') then
        return message
    end
    return flagged(flagged(message, 'headers'), 'delivery_info')
end

local foreign = {}
local count = 0
for _, tag in ipairs(tags) do
    local entry = redis.call('HGET', KEYS[1], tag)
    local priority = string.match(tag, '@(%d+)$')
    local message, queue = string.match(entry or '', '^%[(.*), "", "([^"]*)"%]$')
    if entry and not (message and priority) then
        foreign[#foreign + 1] = tag
    else
        if entry then
            queue = cjson.decode('["' .. queue .. '"]')[1]
            redis.call(ARGV[4], priority == '0' and queue or queue .. separator .. priority, redelivered(message))
        end
        count = count + 1
        redis.call('ZREM', KEYS[2], tag)
        redis.call('HDEL', KEYS[1], tag)
    end
end
return {count, unpack(foreign)}
""")

# Moves an unacknowledged message to a list, as its newest element.
#
# KEYS     unacked, unacked_index, the list
# ARGV     tag, the new element, maximum length of the list (0: unlimited)
#
# Atomic, because the message must be in one place: one that was requeued meanwhile is not moved. An error undoes
# nothing, so the message is added to the list, which may be a key of another type, before it is deleted.
MOVE_UNACKED = Script("""#!lua flags=allow-oom
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    redis.call('LPUSH', KEYS[3], ARGV[2])
    if tonumber(ARGV[3]) > 0 then
        redis.call('LTRIM', KEYS[3], 0, ARGV[3] - 1)
    end
    redis.call('HDEL', KEYS[1], ARGV[1])
end
redis.call('ZREM', KEYS[2], ARGV[1])
""")

# Moves the message of a dead letter to a list, as its newest element.
#
# KEYS     the dead letters, the list
# ARGV     the letter as stored, the message
# Returns  1, or 0 if the letter no longer exists
#
# Atomic, because two people may replay the same letter. The message is added first, because the list may be a key of
# another type; it is removed again if the letter no longer exists.
REPLAY_DEAD_LETTER = Script("""#!lua
redis.call('LPUSH', KEYS[2], ARGV[2])
local removed = redis.call('LREM', KEYS[1], -1, ARGV[1])
if removed == 0 then
    redis.call('LREM', KEYS[2], 1, ARGV[2])
end
return removed
""")

# Adds a member to sets. With allow-oom, because no worker could otherwise start to drain a full server.
#
# KEYS     sets
# ARGV     the member
ADD_TO_SETS = Script("""#!lua flags=allow-oom
for _, key in ipairs(KEYS) do
    redis.call('SADD', key, ARGV[1])
end
""")
