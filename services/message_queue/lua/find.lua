#!lua flags=no-writes
-- Finds a message wherever it is.
--
-- ARGV     id
-- Returns  {id, data, record}, or false when there is none
--
-- Atomic, so that a message which moves meanwhile is found.

local record = record_of(ARGV[1])
local data = record and record.sid and entry_at(record.stream, record.sid)
return data and { ARGV[1], data, cjson.encode(record) } or false
