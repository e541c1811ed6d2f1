#!lua flags=allow-oom
-- Rejects a message: requeues it at the tail of its stream, or dead-letters it if all attempts are used.
--
-- KEYS[1]  queue name
-- ARGV     id, lock token ('' for none), whether a token is required ('1' or '0'), reason, default max attempts
--          ('0': dead-letter it in any case, because it is undecodable)
-- Returns  'REQUEUED' or 'DEAD'; 'UNKNOWN' if there is no such message, 'LOCK_LOST' if the caller does not hold the
--          lock; nothing is written then
--
-- Atomic, so that exactly one of a late nack and a requeue succeeds. allow-oom, so that a full server can be drained.

local id, token, is_token_required, reason, max_attempts = unpack(ARGV)
local record, refusal = locked_record(redis.call('HGET', RECORDS, id), token, is_token_required == '1')
if not record then
  return refusal
end
local data = release(id, record)
if not data then
  finish_releases()
  return 'LOCK_LOST'
end
record.undecodable = max_attempts == '0' or nil
max_attempts = max_attempts ~= '0' and record.custom_max_attempts or tonumber(max_attempts)
local is_final = record.attempt_count >= max_attempts
if is_final then
  dead_letter(id, record, data, reason)
else
  record.last_error = reason
  remember(record, 'requeued', reason)
  requeue(id, record, data)
end
save(id, record)
finish_releases()
add_count(is_final and 'failed' or 'retried', 1)
announce_ids('nack', { id })
if is_final then
  announce_ids('move_to_dlq', { id })
end
return is_final and 'DEAD' or 'REQUEUED'
