#!lua flags=allow-oom
-- Creates the records of messages that other programs have added, so that they can be found by id; one slice per call.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities
-- Returns  {number of records created, 1 after the last slice, else 0}; the next call continues with the next slice
--
-- Atomic, so that the record of a message that changes its state names its location. allow-oom, so that operators can
-- delete messages of a full server.

local streams = { DEAD, ARCHIVED, ACKNOWLEDGED }
for priority = 0, HIGHEST_PRIORITY do
  streams[#streams + 1] = stream_of(priority)
end
local total = 0
for _, stream in ipairs(streams) do
  repeat
    if is_slice_full() then
      return { total, 0 }
    end
    local created, is_end = adopt_entries(stream)
    total = total + created
  until is_end
end
return { total, 1 }
