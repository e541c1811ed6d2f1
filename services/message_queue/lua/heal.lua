#!lua flags=allow-oom
-- Gives a deadline to the entries of one page of a stream's pending list that have none: those that another consumer
-- took, or an older version.
--
-- ARGV     stream, id of the entry after which to begin ('-' for the first), most entries in the page, default ack timeout
--          in ms
-- Returns  {entries healed, id of the page's last entry or '' when there is no further page}
--
-- Atomic, so that an entry which is being taken or acknowledged meanwhile gets no stray deadline. With allow-oom: a
-- full server must be drained.

local stream, after, page, default_timeout = unpack(ARGV)
local pending = redis.pcall('XPENDING', stream, GROUP, after == '-' and '-' or '(' .. after, '+', page)
if pending.err then
  return { 0, '' } -- no such stream, or nobody ever read it
end
local healed, reached = 0, ''
for _, waiting in ipairs(pending) do
  local sid, _, idle, deliveries = unpack(waiting)
  local entry = redis.call('XRANGE', stream, sid, sid)[1]
  reached, handled = sid, handled + 1
  if not entry then
    redis.call('XACK', stream, GROUP, sid) -- deleted under its consumer
  else
    handled_bytes = handled_bytes + #(data_of(entry[2]) or '')
    local id, record = recognise(stream, sid, entry[2])
    if id and not redis.call('ZSCORE', DEADLINES, id) then
      local timeout = record.custom_ack_timeout and record.custom_ack_timeout * 1000 or tonumber(default_timeout)
      local taken = tonumber(record.dequeued_at) and record.dequeued_at * 1000 or NOW_MS - idle
      record.attempt_count = math.max(record.attempt_count, deliveries)
      record.dequeued_at = taken / 1000
      record.processing_started_at = tonumber(record.processing_started_at) or record.dequeued_at
      unindex(id, record)
      set_deadline(id, record, math.floor(taken + timeout))
      redis.call('SADD', PENDING, id)
      save(id, record)
      healed = healed + 1
    end
  end
  if is_slice_full() then
    break
  end
end
return { healed, handled == #pending and handled < tonumber(page) and '' or reached }
