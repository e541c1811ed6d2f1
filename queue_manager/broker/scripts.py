"""What the batched transport does on the server, in one step each.

The form is kombu's own: a list for each queue and priority, a hash of tag → `[message, exchange, routing key]`, and a
sorted set of tag → when it was delivered, in seconds. The names of the last two are transport options: see `keys`.
"""

from __future__ import annotations

from queue_manager.core.redis_client import Script

# Take messages off their lists and register them as unacknowledged.
#
# KEYS     unacked, unacked_index, then the lists: those of the highest priority first
# ARGV     beginning of the new tags, most messages to take, lists of one priority; then for each list what follows a
#          message in its entry, and its priority
# Returns  for each message taken: number of its list, tag, message
#
# Atomic because a worker that dies between taking and registering would lose the messages. An error would not undo what
# was taken, so the keys are tried first, and a key that is not a list counts as empty. Each list of one priority gives
# its share before any gives more, so that a long one does not delay the others. A message is registered unchanged, also
# if it is malformed. With allow-oom: a full server must still be drained.
TAKE = Script("""#!lua flags=allow-oom
local most, together = tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
local taken, index, entries, count = {}, {}, {}, 0
redis.call('HEXISTS', KEYS[1], '')
redis.call('ZSCORE', KEYS[2], '')

local function take(list, room)
    local before = count
    for _, message in ipairs(room > 0 and redis.pcall('RPOP', KEYS[list + 2], room) or {}) do
        count = count + 1
        local tag = ARGV[1] .. string.format('-%04d', count) .. '@' .. ARGV[2 * list + 3]
        index[2 * count - 1], index[2 * count] = now, tag
        entries[2 * count - 1], entries[2 * count] = tag, '[' .. message .. ARGV[2 * list + 2]
        taken[3 * count - 2], taken[3 * count - 1], taken[3 * count] = list, tag, message
    end
    return count - before
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
end
if count > 0 then
    redis.call('ZADD', KEYS[2], unpack(index))
    redis.call('HSET', KEYS[1], unpack(entries))
end
return taken
""")

# Say that messages are still being worked on.
#
# KEYS     unacked_index
# ARGV     tags
#
# By the server's clock, which also says when they are overdue; a tag that has gone stays gone.
RENEW = Script("""#!lua flags=allow-oom
local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
local index = {}
for i, tag in ipairs(ARGV) do
    index[2 * i - 1], index[2 * i] = now, tag
end
return redis.call('ZADD', KEYS[1], 'XX', unpack(index))
""")

# Put unacknowledged messages back where they were taken from, the oldest first.
#
# KEYS     unacked, unacked_index
# ARGV     what stands between a queue's name and its priority, seconds after which a message is overdue, most to put
#          back, RPUSH to deliver them next or LPUSH to deliver them last; then tags, instead of those that are overdue
# Returns  how many it put back; then tags whose messages another transport registered: only it knows their queues
#
# Atomic because a message must be in one place, and because two workers look for overdue ones at the same time.
RESTORE = Script("""#!lua flags=allow-oom
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

-- Set `redelivered` in an object of the message, as stock kombu does in both.
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

# Move an unacknowledged message to another list, as its newest.
#
# KEYS     unacked, unacked_index, the list
# ARGV     tag, what to keep of it, length beyond which the list loses its oldest (0: none)
#
# Atomic because the message must be in one place: what somebody else has put back meanwhile stays where it is.
MOVE = Script("""#!lua flags=allow-oom
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
    redis.call('LPUSH', KEYS[3], ARGV[2])
    if tonumber(ARGV[3]) > 0 then
        redis.call('LTRIM', KEYS[3], 0, ARGV[3] - 1)
    end
end
redis.call('ZREM', KEYS[2], ARGV[1])
""")

# Move a dead letter's message back to a list, as its newest.
#
# KEYS     the dead letters, the list
# ARGV     the letter as it is stored, the message
# Returns  1, or 0 if the letter is not there any more
#
# Atomic because two people may replay the same letter.
REPLAY = Script("""#!lua
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then
    return 0
end
redis.call('LPUSH', KEYS[2], ARGV[2])
return 1
""")

# Add a member to sets, however full the server is: else no worker could start that would empty it.
#
# KEYS     sets
# ARGV     the member
ADD = Script("""#!lua flags=allow-oom
for _, key in ipairs(KEYS) do
    redis.call('SADD', key, ARGV[1])
end
""")
