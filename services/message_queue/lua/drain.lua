#!lua flags=allow-oom
-- Moves messages that wait in the stream of an older service to the streams of their priorities, one slice per call.
--
-- KEYS[1]  queue name
-- ARGV     priority levels
-- Returns  1 after the last slice, else 0
--
-- Atomic, so that a message is in one stream and no other consumer takes it meanwhile. allow-oom, so that a full server
-- can be drained.

highest_priority = ARGV[1] - 1
local entries, is_end
repeat
  entries, is_end = read_entries_of(MANUAL, '(' .. last_delivered(MANUAL), '+')
  for i, entry in ipairs(entries) do
    if i > 1 and is_slice_full() then
      return 0
    end
    handled = handled + 2
    local id, record, data = read_entry(MANUAL, entry[1], entry[2])
    if id then
      redis.call('XDEL', MANUAL, entry[1])
      end_delivery(id, record)
      requeue(id, record, data)
      save(id, record)
    end
  end
until is_end
return 1
