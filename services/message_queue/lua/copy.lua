#!lua flags=no-writes
-- Reads messages in any state as they are stored, so that `restore` can add them again.
--
-- KEYS[1]  queue name
-- ARGV     ids
-- Returns  {rows of {id, state, stored record, data}, number of ids in this slice}; an unknown id has no row
--
-- Atomic, so that a record and its entry belong together.

local rows = {}
for _, id in ipairs(ARGV) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local stored = redis.call('HGET', RECORDS, id)
  local record, data = nil, nil
  if stored then
    record, data = record_in(stored)
  end
  data = data or record and record.sid and entry_at(record.stream, record.sid)
  if data then
    rows[#rows + 1] = { id, state_of(record), stored, data }
  end
end
return { rows, handled }
