#!lua flags=allow-oom
-- Gives a message back: to the tail of its priority's stream, or to the dead letters when it is out of attempts.
--
-- ARGV     id, lock token ('' for none), whether a token is needed ('1' or '0'), reason, default max attempts
--          ('0': to the dead letters whatever is left, because it is no message)
-- Returns  'REQUEUED' or 'DEAD'; 'UNKNOWN' when the id exists nowhere and 'LOCK_LOST' when the caller does not hold
--          it: then nothing is written
--
-- Atomic, so that of a late consumer and a requeue one wins. With allow-oom: a full server must be drained.

local id, token, needs_token, reason, max_attempts = unpack(ARGV)
local record, refusal = held(id, token, needs_token == '1')
if not record then
  return refusal
end
local data = release(id, record)
if not data then
  return 'LOCK_LOST'
end
record.undecodable = max_attempts == '0' or nil
max_attempts = max_attempts ~= '0' and record.custom_max_attempts or tonumber(max_attempts)
announce_ids('nack', { id })
if record.attempt_count >= max_attempts then
  bury(id, record, data, reason)
  announce_ids('move_to_dlq', { id })
  return 'DEAD'
end
record.last_error = reason
put_back(id, record, data)
return 'REQUEUED'
