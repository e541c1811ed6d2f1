#!lua flags=no-writes
-- Finds messages in any state. `restore` adds them again from the record as it is stored.
--
-- KEYS[1]  queue name
-- ARGV     ids
-- Returns  for each id of this slice {id, data, record, state, stored record}, or false if it is unknown
--
-- Atomic, so that states and contents are a consistent snapshot.

local rows = {}
for _, id in ipairs(ARGV) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local stored, record, data = redis.call('HGET', RECORDS, id), nil, nil
  if stored then
    record, data = record_in(stored)
  end
  data = data or record and record.sid and entry_at(record.stream, record.sid)
  rows[#rows + 1] = data and { id, data, cjson.encode(record), state_of(record), stored } or false
end
return rows
