#!lua flags=allow-oom
-- Deletes records whose entries were deleted by another consumer, one slice of the records per call.
--
-- KEYS[1]  queue name
-- Returns  1 after the last slice, else 0; the next call continues with the next slice
--
-- Atomic, so that the record of a message that changes its state is kept. allow-oom, because it frees memory.

local CURSOR = QUEUE .. ':forget_cursor'

local cursor = redis.call('GET', CURSOR) or '0'
repeat
  local answer = redis.call('HSCAN', RECORDS, cursor, 'COUNT', MAX_READ)
  cursor = answer[1]
  for i = 1, #answer[2], 2 do
    handled = handled + 1
    local record = record_in(answer[2][i + 1])
    if record and record.sid then
      forget_if_lost(answer[2][i], record)
    end
  end
until cursor == '0' or is_slice_full()
redis.call('SET', CURSOR, cursor)
return cursor == '0' and 1 or 0
