#!lua flags=allow-oom
-- Forgets the records of messages whose entries another consumer has deleted, one slice of the records at a time.
--
-- Returns  1 after the last slice, else 0; the next call goes on behind this one's slice
--
-- Atomic, so that a message which moves meanwhile is not forgotten. With allow-oom: it makes room.

local CURSOR = QUEUE .. ':forget_cursor'

local function forget_if_lost(id, record)
  record = record and normal(record)
  if record and record.sid then
    local _, is_there = entry_at(record.stream, record.sid)
    if not is_there then
      unindex(id, record)
      forget(id)
    end
  end
end

local cursor = redis.call('GET', CURSOR) or '0'
repeat
  local answer = redis.call('HSCAN', RECORDS, cursor, 'COUNT', MAX_READ)
  cursor = answer[1]
  for i = 1, #answer[2], 2 do
    handled = handled + 1
    forget_if_lost(answer[2][i], decoded(answer[2][i + 1]))
  end
until cursor == '0' or is_slice_full()
redis.call('SET', CURSOR, cursor)
return cursor == '0' and 1 or 0
