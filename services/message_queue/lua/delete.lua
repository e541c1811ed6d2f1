#!lua flags=allow-oom
-- Deletes messages, whoever holds them.
--
-- ARGV     place they are in ('' for any), then the ids
-- Returns  for each id of this slice 'DELETED', or 'NOT_FOUND' when it is not in that place (any more)
--
-- Atomic, so that a message which moves meanwhile is deleted or kept as a whole. With allow-oom: it makes room.

local deleted, answers = {}, {}
for i = 2, #ARGV do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local id = ARGV[i]
  local record = record_of(id)
  local place = record and record.sid and place_of(record)
  if not place or (ARGV[1] ~= '' and place ~= ARGV[1]) then
    answers[#answers + 1] = 'NOT_FOUND'
  else
    local was_there = redis.call('XDEL', record.stream, record.sid) == 1
    if place == 'main' or place == 'processing' then
      redis.call('XACK', record.stream, GROUP, record.sid)
      unindex(id, record)
    end
    forget(id)
    answers[#answers + 1] = was_there and 'DELETED' or 'NOT_FOUND'
    deleted[#deleted + 1] = was_there and id or nil
  end
end
if #deleted > 0 then
  announce_ids('delete', deleted)
end
return answers
