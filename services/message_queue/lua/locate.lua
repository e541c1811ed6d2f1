#!lua flags=no-writes
-- Finds messages in any state.
--
-- KEYS[1]  queue name
-- ARGV     ids
-- Returns  {rows of {id, data, record, state}, number of ids in this slice}; an unknown id has no row
--
-- Atomic, so that states and contents are a consistent snapshot.

local rows = {}
for _, id in ipairs(ARGV) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local record, data = record_of(id)
  data = data or record and record.sid and entry_at(record.stream, record.sid)
  if data then
    rows[#rows + 1] = { id, data, cjson.encode(record), state_of(record) }
  end
end
return { rows, handled }
