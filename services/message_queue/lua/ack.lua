#!lua flags=allow-oom
-- Acknowledges messages and moves them to the history.
--
-- KEYS[1]  queue name
-- ARGV     whether a token is required ('1' or '0'), then id and lock token ('' for none) of each message
-- Returns  for each message of the slice, which begins with the first, 'OK', or 'LOCK_LOST' if the caller does not hold
--          the lock; nothing is written for it then. The caller must call again for the others.
--
-- Atomic, so that exactly one of a late ack and a requeue succeeds. allow-oom, so that a full server can be drained.

local is_token_required = ARGV[1] == '1'
local ids, answers, acknowledged, records = {}, {}, {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
for i, text in ipairs(redis.call('HMGET', RECORDS, unpack(ids))) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local record = locked_record(text, ARGV[i * 2 + 1], is_token_required)
  local started_at = record and record.processing_started_at
  local data = record and release(ids[i], record)
  answers[i] = data and 'OK' or 'LOCK_LOST'
  if data then
    acknowledged[#acknowledged + 1] = ids[i]
    add_duration('due_to_done', record.created_at)
    add_duration('run', started_at or NOW)
    add_to_history(ids[i], record, data)
    records[#records + 1] = ids[i]
    records[#records + 1] = packed(record)
  end
end
finish_releases()
if #acknowledged > 0 then
  redis.call('HSET', RECORDS, unpack(records))
  trim_history(#acknowledged)
  add_count('done', #acknowledged)
  write_counts()
  announce_ids('acknowledge', acknowledged)
end
return answers
