#!lua flags=allow-oom
-- Acknowledges a message and moves it to the history.
--
-- KEYS[1]  queue name
-- ARGV     id, lock token ('' for none), whether a token is required ('1' or '0')
-- Returns  'OK', or 'LOCK_LOST' if the caller does not hold the lock; nothing is written then
--
-- Atomic, so that exactly one of a late ack and a requeue succeeds. allow-oom, so that a full server can be drained.

local id, token, is_token_required = unpack(ARGV)
local record = locked_record(id, token, is_token_required == '1')
local data = record and release(id, record)
if not data then
  return 'LOCK_LOST'
end
add_to_history(id, record, data)
announce_ids('acknowledge', { id })
return 'OK'
