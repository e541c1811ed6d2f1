#!lua flags=allow-oom
-- Acknowledges a message: it is done, and goes into the history.
--
-- ARGV     id, lock token ('' for none), whether a token is needed ('1' or '0')
-- Returns  'OK', or 'LOCK_LOST' when the caller does not hold it: then nothing is written
--
-- Atomic, so that of a late consumer and a requeue one wins. With allow-oom: a full server must be drained.

local id, token, needs_token = unpack(ARGV)
local record = held(id, token, needs_token == '1')
local data = record and release(id, record)
if not data then
  return 'LOCK_LOST'
end
remember(id, record, data)
announce_ids('acknowledge', { id })
return 'OK'
