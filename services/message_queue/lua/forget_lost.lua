#!lua flags=allow-oom
-- Forgets the records of messages whose entries another consumer has deleted, one page of the records at a time.
--
-- ARGV     records in the page, about
-- Returns  1 after the last page, else 0; the next call goes on behind this one's page
--
-- Atomic, so that a message which moves meanwhile is not forgotten. With allow-oom: it makes room.

local CURSOR = QUEUE .. ':forget_cursor'

local answer = redis.call('HSCAN', RECORDS, redis.call('GET', CURSOR) or '0', 'COUNT', ARGV[1])
redis.call('SET', CURSOR, answer[1])
for i = 1, #answer[2], 2 do
  local id, record = answer[2][i], decoded(answer[2][i + 1])
  record = record and normal(record)
  if record and record.sid then
    local _, is_there = entry_at(record.stream, record.sid)
    if not is_there then
      unindex(id, record)
      forget(id)
    end
  end
end
return answer[1] == '0' and 1 or 0
