#!lua flags=no-writes
-- Finds messages wherever they are.
--
-- ARGV     ids
-- Returns  rows of {id, data, record, place}; an id that is nowhere has none
--
-- Atomic, so that each is where it is said to be, as far as one moment is concerned.

local rows = {}
for _, id in ipairs(ARGV) do
  local record = record_of(id)
  local data = record and record.sid and entry_at(record.stream, record.sid)
  if data then
    rows[#rows + 1] = { id, data, cjson.encode(record), place_of(record) }
  end
end
return rows
