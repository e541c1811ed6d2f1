#!lua flags=allow-oom
-- Deletes messages, even while a consumer holds the lock.
--
-- KEYS[1]  queue name
-- ARGV     required state ('' for any), 1 or 2, then the ids, with 2 each followed by the record that was read before
-- Returns  for each id of this slice 'DELETED', 'NOT_FOUND' if it is not in that state, or 'CHANGED' if its record is not
--          that one any more
--
-- Atomic, so that a message that changes its state meanwhile is deleted or kept as a whole. allow-oom, because it frees
-- memory.

local deleted, answers = {}, {}
local step = tonumber(ARGV[2])
for i = 3, #ARGV, step do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local id = ARGV[i]
  local stored = redis.call('HGET', RECORDS, id)
  local record = stored and record_in(stored)
  local state = record and record.sid and state_of(record)
  if stored and step == 2 and stored ~= ARGV[i + 1] then
    answers[#answers + 1] = 'CHANGED'
  elseif not state or (ARGV[1] ~= '' and state ~= ARGV[1]) then
    answers[#answers + 1] = 'NOT_FOUND'
  else
    local is_deleted = redis.call('XDEL', record.stream, record.sid) == 1
    if state == 'main' or state == 'processing' then
      redis.call('XACK', record.stream, GROUP, record.sid)
      unindex(id, record)
    end
    forget(id)
    answers[#answers + 1] = is_deleted and 'DELETED' or 'NOT_FOUND'
    deleted[#deleted + 1] = is_deleted and id or nil
  end
end
if #deleted > 0 then
  announce_ids('delete', deleted)
end
return answers
