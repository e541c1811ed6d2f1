#!lua flags=allow-oom
-- Requeues messages that no consumer would receive, one slice per call: the group has passed over their entries, and they
-- are neither pending nor parked. Another program has deleted the consumer of the group or the key of the parked messages,
-- or has renamed a stream and renamed it back.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities; "1" to check first whether there are such messages
-- Returns  {number of messages requeued, 1 after the last slice, else 0}; the next call continues with the next slice
--
-- A message is requeued when the next round finds it again, because a program may acknowledge an entry and delete it a
-- moment later. Entries without a record are left: other programs may keep their own.
-- Atomic, so that no consumer receives the message meanwhile. allow-oom, so that a full server can be drained.

local FOUND = QUEUE .. ':to_recover' -- set of entries
local MAX_AGE = 24 * 3600 -- seconds after which what was found is forgotten: longer than a round through the streams
local CURSOR = QUEUE .. ':recover_cursor' -- number of the stream, and the last entry of the slices so far

local streams = { TYPED, MANUAL }
for priority = 0, HIGHEST_PRIORITY do
  streams[#streams + 1] = stream_of(priority)
end

-- Returns the number of entries that the group has passed over, neither pending nor parked; nil if the server does not know.
local function count_passed_over()
  local count = 0
  for _, stream in ipairs(streams) do
    local last, pending, unread = last_delivered(stream)
    if last ~= '0-0' then
      count = count and unread and count + redis.call('XLEN', stream) - unread - pending
    end
  end
  for kind in pairs(pauses()) do
    count = count and count - redis.call('ZCARD', PARKED .. kind)
  end
  return count or nil
end

local requeued = 0

-- Requeues the message of an entry if it is found for the second time.
local function recover(stream, sid, fields)
  local id, record, data = known_entry(stream, sid, fields)
  if not record or record.deadline_at or is_pending(stream, sid) or is_parked(id, record) then
    return
  end
  local place = stream .. ' ' .. sid
  if redis.call('SREM', FOUND, place) == 0 then
    redis.call('SADD', FOUND, place)
    redis.call('EXPIRE', FOUND, MAX_AGE)
  else
    remember(record, 'requeued', 'The consumer group had passed over it')
    put_back(id, record, data)
    requeued, handled = requeued + 1, handled + 1
  end
end

if ARGV[2] == '1' and (count_passed_over() or 1) <= 0 then
  redis.call('DEL', CURSOR)
  return { 0, 1 } -- as always, unless another program interferes
end
local number, after = string.match(redis.call('GET', CURSOR) or '1 ', '^(%d+) (.*)$')
number = tonumber(number)
while streams[number] do
  local last = last_delivered(streams[number])
  repeat
    if is_slice_full() then
      redis.call('SET', CURSOR, number .. ' ' .. after)
      return { requeued, 0 }
    end
    local entries, is_end = read_entries_of(streams[number], after == '' and '-' or '(' .. after, last)
    for _, entry in ipairs(entries) do
      after, handled = entry[1], handled + 1
      recover(streams[number], after, entry[2])
    end
  until is_end
  number, after = number + 1, ''
end
redis.call('DEL', CURSOR)
return { requeued, 1 }
