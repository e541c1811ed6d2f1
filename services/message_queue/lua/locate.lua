#!lua flags=no-writes
-- Finds messages wherever they are.
--
-- ARGV     ids
-- Returns  {rows of {id, data, record, place}, ids of this slice}; an id that is nowhere has no row
--
-- Atomic, so that each is where it is said to be, as far as one moment is concerned.

local rows = {}
for _, id in ipairs(ARGV) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local record = record_of(id)
  local data = record and record.sid and entry_at(record.stream, record.sid)
  if data then
    rows[#rows + 1] = { id, data, cjson.encode(record), place_of(record) }
  end
end
return { rows, handled }
