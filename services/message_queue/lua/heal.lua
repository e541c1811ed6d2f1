#!lua flags=allow-oom
-- Sets a deadline for pending entries without one, on one page of a stream's pending list: entries taken by another
-- consumer or by an older release.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities, stream, page size, default ack timeout in ms
-- Returns  {number of deadlines set, 1 after the last page, else 0}; the next call continues with the next page
--
-- Atomic, so that an entry acknowledged meanwhile gets no deadline. allow-oom, so that a full server can be drained.

local HEALED = QUEUE .. ':healed_until' -- by stream, the last entry of the pages so far

local stream, page, default_timeout = unpack(ARGV, 2)
local after = redis.call('HGET', HEALED, stream)
local pending = redis.pcall('XPENDING', stream, GROUP, after and '(' .. after or '-', '+', page)
if pending.err then
  return { 0, 1 } -- no such stream or group
end
local healed, reached = 0, ''
for _, summary in ipairs(pending) do
  local sid, _, idle, deliveries = unpack(summary)
  local entry = redis.call('XRANGE', stream, sid, sid)[1]
  reached, handled = sid, handled + 1
  if not entry then
    redis.call('XACK', stream, GROUP, sid) -- deleted while pending
  else
    handled_bytes = handled_bytes + #(data_of(entry[2]) or '')
    local id, record = read_entry(stream, sid, entry[2])
    if id and not redis.call('ZSCORE', DEADLINES, id) then
      local timeout = record.custom_ack_timeout and record.custom_ack_timeout * 1000 or tonumber(default_timeout)
      local taken_at = tonumber(record.dequeued_at) and record.dequeued_at * 1000 or NOW_MS - idle
      taken_at = math.min(taken_at, NOW_MS) -- the clock of the older service may be ahead
      record.attempt_count = math.max(record.attempt_count, deliveries)
      record.dequeued_at = taken_at / 1000
      record.processing_started_at = tonumber(record.processing_started_at) or record.dequeued_at
      remember(record, 'delivered', string.format('%d %s', record.attempt_count, record.consumer_id or ''), taken_at)
      unindex(id, record)
      set_deadline(id, record, math.floor(taken_at + timeout))
      redis.call('SADD', PENDING, id)
      save(id, record)
      healed = healed + 1
    end
  end
  if is_slice_full() then
    break
  end
end
if handled == #pending and handled < tonumber(page) then
  redis.call('HDEL', HEALED, stream)
  return { healed, 1 }
end
redis.call('HSET', HEALED, stream, reached)
return { healed, 0 }
