#!lua flags=allow-oom
-- Extends the deadline of a message that the caller holds: it is counted from now.
--
-- ARGV     id, lock token ('' for none), whether a token is needed ('1' or '0'), extension in ms ('' for the
--          message's own timeout), default ack timeout in ms, ms to the next periodic sweep (0: none can be planned)
-- Returns  {'OK', new deadline in ms, extension in ms, ms until a sweep that the caller is to plan, or 0};
--          {'UNKNOWN'} when the id exists nowhere, {'LOCK_LOST'} when the caller does not hold it: nothing is written
--
-- Atomic, so that a message that a sweep takes is not extended. With allow-oom: a full server must be drained.

local id, token, needs_token, extension, default_timeout, sweep_within = unpack(ARGV)
local record, refusal = held(id, token, needs_token == '1')
if not record then
  return { refusal }
end
if #redis.call('XPENDING', record.stream, GROUP, record.sid, record.sid, 1) == 0 then
  return { 'LOCK_LOST' }
end
local own = record.custom_ack_timeout and record.custom_ack_timeout * 1000
extension = math.ceil(tonumber(extension) or own or tonumber(default_timeout))
local deadline = NOW_MS + extension
record.dequeued_at = NOW
set_deadline(id, record, deadline)
save(id, record)
announce('touch', '{"count":1,"ids":' .. array({ id }) .. ',"deadline":' .. deadline .. '}')
return { 'OK', deadline, extension, plan_sweep(deadline, tonumber(sweep_within)) }
