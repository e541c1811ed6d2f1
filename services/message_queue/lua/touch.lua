#!lua flags=allow-oom
-- Extends the deadline of a message that the caller has locked, counted from now.
--
-- KEYS[1]  queue name
-- ARGV     id, lock token ('' for none), whether a token is required ('1' or '0'), extension in ms ('' for the
--          message's own timeout), default ack timeout in ms, ms between periodic sweeps (0: none can be scheduled)
-- Returns  {'OK', new deadline in ms, extension in ms, ms until a sweep that the caller must schedule, or 0};
--          {'UNKNOWN'} if there is no such message, {'LOCK_LOST'} if the caller does not hold the lock: nothing is
--          written then
--
-- Atomic, so that a message requeued meanwhile is not extended. allow-oom, so that a full server can be drained.

local id, token, is_token_required, extension, default_timeout, sweep_period = unpack(ARGV)
local record, refusal = locked_record(redis.call('HGET', RECORDS, id), token, is_token_required == '1')
if not record then
  return { refusal }
end
if not is_pending(record.stream, record.sid) then
  return { 'LOCK_LOST' }
end
local own = record.custom_ack_timeout and record.custom_ack_timeout * 1000
extension = math.ceil(tonumber(extension) or own or tonumber(default_timeout))
local deadline = NOW_MS + extension
record.dequeued_at = NOW -- readers count the timeout from here
remember(record, 'touched')
set_deadline(id, record, deadline)
save(id, record)
announce('touch', '{"count":1,"ids":' .. array({ id }) .. ',"deadline":' .. deadline .. '}')
return { 'OK', deadline, extension, schedule_sweep(deadline, tonumber(sweep_period)) }
