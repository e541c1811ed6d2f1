"""Lua scripts of the leases, each atomic.

KEYS are the sets of one system in the order of `Sets`, unless the script says otherwise. `allow-oom`: a server whose
memory is full refuses only the scripts that accept new work, so that work in progress can be finished.
"""

from __future__ import annotations

from typing import NamedTuple

from queue_manager.core.clock import hours, milliseconds, seconds
from queue_manager.core.redis_client import Script

MAX_ARGUMENTS = 2_000  # names in one command: Lua's stack is limited, and other clients wait meanwhile
RETENTION_MS = milliseconds(hours(24))  # of leases that ended without a result, and of losses
SETS_RETENTION_MS = milliseconds(hours(8 * 24))  # since the last scan or item: scans may be a week apart
JUST_TAKEN_MS = milliseconds(seconds(3))  # a worker renews the lease of a received or newly due item within this time


class Sets(NamedTuple):
    """The keys of one system: sorted sets, and `losses`, a hash."""

    waiting: str
    running: str
    cooling: str
    done: str
    started: str
    losses: str
    flagged: str


_PRELUDE = f"""
local {", ".join(Sets._fields)} = unpack(KEYS)
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- Returns the time in so many ms as a text: Lua would format a number again for each name.
local function time_in(ms) return string.format('%.0f', now + ms) end

-- Keeps a set that is in use; one of a system that was switched off or removed expires.
local function keep(set) redis.call('PEXPIRE', set, {SETS_RETENTION_MS}) end

local function write(set, ...)
    redis.call('ZADD', set, ...)
    keep(set)
end
"""

# Take the leases that are free.
#
# ARGV     how long in ms; "1" to take cooling ones too; how long in ms to remember that the caller flags the documents,
#          0 if it flags none; names
# Returns  when they end, in ms; then the positions of the names taken, from 1
#
# Atomic because two scanners may find the same items.
TAKE = Script(f"""#!lua
{_PRELUDE}
local names = {{unpack(ARGV, 4)}}
local w = redis.call('ZMSCORE', waiting, unpack(names))
local r = redis.call('ZMSCORE', running, unpack(names))
local c = redis.call('ZMSCORE', cooling, unpack(names))
local d = redis.call('ZMSCORE', done, unpack(names))
local ends, flagged_until = time_in(ARGV[1]), time_in(ARGV[3])
local reply, add, cooled, marked = {{tonumber(ends)}}, {{}}, {{}}, {{}}
for i, name in ipairs(names) do
    local is_cooling = c[i] and tonumber(c[i]) > now and ARGV[2] ~= '1'
    local is_held = w[i] or (r[i] and tonumber(r[i]) > now) or (d[i] and tonumber(d[i]) > now)
    if not is_held and not is_cooling then
        reply[#reply + 1] = i
        add[#add + 1], add[#add + 2] = ends, name
        if c[i] then cooled[#cooled + 1] = name end
        if ARGV[3] ~= '0' then
            marked[#marked + 1], marked[#marked + 2] = flagged_until, string.match(name, '^(.*)@')
        end
    end
end
if #add > 0 then write(running, unpack(add)) end
if #cooled > 0 then redis.call('ZREM', cooling, unpack(cooled)) end
if #marked > 0 then write(flagged, unpack(marked)) end
return reply
""")

# Mark taken items as dispatched: they wait for a worker, for any time.
#
# ARGV     when the last of the taken leases ends, in ms; names. A lease that ends later was renewed by a worker, which
#          has received the item meanwhile.
DISPATCHED = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
local scores = redis.call('ZMSCORE', running, unpack(ARGV, 2))
local add, remove, dispatched_at, last = {{}}, {{}}, time_in(0), tonumber(ARGV[1])
for i = 2, #ARGV do
    if scores[i - 1] and tonumber(scores[i - 1]) <= last then
        add[#add + 1], add[#add + 2] = dispatched_at, ARGV[i]
        remove[#remove + 1] = ARGV[i]
    end
end
if #remove > 0 then
    redis.call('ZREM', running, unpack(remove))
    write(waiting, unpack(add))
end
""")

# Hold unknown items once, because another program may be working on them: their flag is not ours.
#
# ARGV     how long in ms, names
HOLD_UNKNOWN = Script(f"""#!lua
{_PRELUDE}
for i = 2, #ARGV do
    local name = ARGV[i]
    local ours = tonumber(redis.call('ZSCORE', flagged, string.match(name, '^(.*)@')) or 0) > now
    if not (ours or redis.call('ZSCORE', waiting, name) or redis.call('ZSCORE', cooling, name)
            or redis.call('ZSCORE', done, name)) then
        redis.call('ZADD', running, 'NX', now + ARGV[1], name)
    end
end
keep(running)
""")

# Free the oldest waiting items whose messages were lost: their leases end now.
#
# ARGV     number of messages that wait in the broker; age in ms: only items dispatched longer ago are freed
# Returns  how many
#
# An item with an ETA is with a worker until then; it starts a moment after its ETA.
FREE_LOST = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
for _, set in ipairs({{waiting, running, cooling, done, started, flagged}}) do keep(set) end
redis.call('ZREMRANGEBYSCORE', running, '-inf', now - {RETENTION_MS})
redis.call('ZREMRANGEBYSCORE', cooling, '-inf', now - {RETENTION_MS})
local lost = redis.call('ZCOUNT', waiting, '-inf', now - {JUST_TAKEN_MS}) - ARGV[1]
if lost <= 0 then return 0 end
local most = math.min(lost, {MAX_ARGUMENTS})
local names = redis.call('ZRANGE', waiting, '-inf', now - ARGV[2], 'BYSCORE', 'LIMIT', 0, most)
local ended = {{}}
for _, name in ipairs(names) do ended[#ended + 1], ended[#ended + 2] = now, name end
if #names > 0 then
    redis.call('ZREM', waiting, unpack(names))
    write(running, unpack(ended))
end
return #names
""")

# Extend leases of received items; never shortens one. Items that ended or were released meanwhile stay so, and so do
# items with an ETA to come.
#
# ARGV     how long in ms, names
RENEW = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
local ends = time_in(ARGV[1])
local scores = redis.call('ZMSCORE', waiting, unpack(ARGV, 2))
local extend, begin, names = {{}}, {{}}, {{}}
for i = 2, #ARGV do
    local at = scores[i - 1]
    if not at then
        extend[#extend + 1], extend[#extend + 2] = ends, ARGV[i]
    elseif tonumber(at) <= now then
        begin[#begin + 1], begin[#begin + 2] = ends, ARGV[i]
        names[#names + 1] = ARGV[i]
    end
end
if #extend > 0 then write(running, 'XX', 'GT', unpack(extend)) end
if #begin > 0 then
    redis.call('ZREM', waiting, unpack(names))
    write(running, unpack(begin))
end
""")

# Mark held items as sent with an ETA, or as sent again: they wait for a worker, for any time.
#
# ARGV     by item: ms until its ETA, name
SENT_AGAIN = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
for i = 1, #ARGV, 2 do
    local wait, name = ARGV[i], ARGV[i + 1]
    if redis.call('ZREM', running, name) == 1 or redis.call('ZSCORE', waiting, name) then
        redis.call('ZADD', waiting, now + wait, name)
    end
end
keep(waiting)
""")

# End the leases of items whose ETA has not come.
#
# ARGV     lease in ms, names
END_EARLY = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
for i = 2, #ARGV do
    local ends = redis.call('ZSCORE', running, ARGV[i])
    if ends and tonumber(ends) > now + ARGV[1] then redis.call('ZREM', running, ARGV[i]) end
end
""")

# Release leases. They may be taken again at once, or after a cool-down.
#
# ARGV     cool-down in ms, names
RELEASE = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
redis.call('ZREM', waiting, unpack(ARGV, 2))
redis.call('ZREM', running, unpack(ARGV, 2))
if tonumber(ARGV[1]) > 0 then
    for i = 2, #ARGV do redis.call('ZADD', cooling, now + ARGV[1], ARGV[i]) end
    keep(cooling)
end
""")

# Take or renew the scan lock of a system.
#
# KEYS     the scan's key; ARGV: token, how long in ms
# Returns  1 if the token holds it
HOLD_SCAN_LOCK = Script("""#!lua
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")

# Release the scan lock. KEYS and ARGV as above.
RELEASE_SCAN_LOCK = Script("""#!lua flags=allow-oom
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")

# Record the start of a batch, except of items that must be executed alone.
#
# ARGV     lease in ms, names
# Returns  positions of the items to be executed alone, from 1
START_BATCH = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
local names = {{unpack(ARGV, 2)}}
local before = redis.call('ZMSCORE', started, unpack(names))
local lost = redis.call('EXISTS', losses) == 1 and redis.call('HMGET', losses, unpack(names)) or {{}}
local suspects, fresh, ends, gone = {{}}, {{}}, {{}}, {{}}
local started_at, ends_at = time_in(0), time_in(ARGV[1])
for i, name in ipairs(names) do
    if before[i] or lost[i] then
        suspects[#suspects + 1] = i
    else
        fresh[#fresh + 1], fresh[#fresh + 2] = started_at, name
        ends[#ends + 1], ends[#ends + 2] = ends_at, name
        gone[#gone + 1] = name
    end
end
if #gone > 0 then
    redis.call('ZREM', waiting, unpack(gone))
    write(running, unpack(ends))
    write(started, unpack(fresh))
end
return suspects
""")

# Record the start of one item; an earlier start that never ended counts as a loss.
#
# ARGV     lease in ms, name, number of losses from which the item must cool down first
# Returns  losses in a row if it must cool down first, else 0
#
# A cool-down removes the record, so that the next start does not count it again.
START_ALONE = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
local name, keep = ARGV[2], {RETENTION_MS}
if redis.call('ZSCORE', started, name) then
    local count = 1
    local all = redis.call('HGETALL', losses)
    for i = 1, #all, 2 do
        local n, at = string.match(all[i + 1], '^(%d+):(%d+)$')
        if not at or now - at > keep then
            redis.call('HDEL', losses, all[i])
        elseif all[i] == name then
            count = n + 1
        end
    end
    redis.call('HSET', losses, name, string.format('%d:%d', count, now))
    redis.call('PEXPIRE', losses, keep)
    if count >= tonumber(ARGV[3]) then
        redis.call('ZREM', started, name)
        return count
    end
end
redis.call('ZREM', waiting, name)
write(running, now + ARGV[1], name)
write(started, now, name)
return 0
""")

# Record that attempts ended, with or without success; the leases of done items end a moment later.
#
# ARGV     ms for which scans skip done items; how many of the names are done; names, the done ones first
END = Script(f"""#!lua flags=allow-oom
{_PRELUDE}
redis.call('ZREM', started, unpack(ARGV, 3))
if redis.call('EXISTS', losses) == 1 then redis.call('HDEL', losses, unpack(ARGV, 3)) end
redis.call('ZREMRANGEBYSCORE', started, '-inf', now - {RETENTION_MS})
redis.call('ZREMRANGEBYSCORE', done, '-inf', now)
redis.call('ZREMRANGEBYSCORE', flagged, '-inf', now)
local add, remove, ends = {{}}, {{}}, time_in(ARGV[1])
for i = 3, 2 + ARGV[2] do
    add[#add + 1], add[#add + 2] = ends, ARGV[i]
    remove[#remove + 1] = ARGV[i]
end
if #remove > 0 then
    if redis.call('ZREM', running, unpack(remove)) < #remove then redis.call('ZREM', waiting, unpack(remove)) end
    write(done, unpack(add))
end
""")


# Reserve times for items that are dispatched at a limited rate.
#
# KEYS     when the next item may come, in ms
# ARGV     now and the interval between two items in ms; the due times of the items in ms, oldest first
# Returns  the time of each item, in ms
#
# Atomic because a second scan must not use the same times.
RESERVE = Script("""#!lua
local now, interval, times = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
local at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
for i = 3, #ARGV do
    at = math.max(at, tonumber(ARGV[i]))
    times[#times + 1] = math.floor(at)
    at = at + interval
end
redis.call('SET', KEYS[1], string.format('%.3f', at), 'PX', math.ceil(at - now) + 1)
return times
""")
