#!lua flags=allow-oom
-- Moves waiting messages to the streams of their priorities, one slice per call: from the stream of an older service, or of
-- a priority that there is no more.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities, stream, entry id after which the slice begins ('' for the first that may wait)
-- Returns  the id of the last entry of the slice; '' after the last slice
--
-- Atomic, so that a message is in one stream and no other consumer takes it meanwhile. allow-oom, so that a full server
-- can be drained.

local stream, after = unpack(ARGV, 2)
after = after == '' and stream == MANUAL and last_delivered(MANUAL) or after
repeat
  local entries, is_end = read_entries_of(stream, after == '' and '-' or '(' .. after, '+')
  for _, entry in ipairs(entries) do
    after, handled = entry[1], handled + 2
    local id, record, data = read_entry(stream, after, entry[2])
    if id and not record.deadline_at then
      put_back(id, record, data)
    end
  end
  if is_end then
    return ''
  end
until is_slice_full()
return after
