#!lua
-- Adds deleted messages again, each to the end of its state; one that was being processed waits again.
--
-- KEYS[1]  queue name
-- ARGV     four per message, as `locate` returned them: id, state, stored record, data
-- Returns  for each message of this slice 1, or 0 if its id exists again
--
-- Atomic, so that a repeated call adds nothing twice. Without allow-oom, so that a full server refuses the whole call.

-- Returns the record of a message that is deleted, without its location.
local function deleted_record(stored, data)
  local stream, sid = located(stored)
  local record = stream and waiting_record(stream, sid, data) or unpacked(stored) or validated({})
  clear_delivery(record)
  record.unindexed = true
  return record
end

local answers, restored = {}, {}
for i = 1, #ARGV, 4 do
  if is_slice_full() then
    break
  end
  local id, state, stored, data = unpack(ARGV, i, i + 3)
  handled, handled_bytes = handled + 1, handled_bytes + #data
  local is_new = redis.call('HEXISTS', RECORDS, id) == 0
  if is_new then
    local record = deleted_record(stored, data)
    if STREAMS_BY_STATE[state] then
      append(STREAMS_BY_STATE[state], id, record, data)
    else
      requeue(id, record, data)
    end
    if located(stored) and record.unindexed then
      redis.call('HSET', RECORDS, id, packed_location(record.priority, record.sid))
    else
      save(id, record)
    end
    state = state_of(record)
    restored[state] = restored[state] or {}
    table.insert(restored[state], id)
  end
  answers[#answers + 1] = is_new and 1 or 0
end
for state, ids in pairs(restored) do
  announce('move', '{"count":' .. #ids .. ',"from":"","to":"' .. state .. '","ids":' .. array(ids) .. '}')
end
return answers
