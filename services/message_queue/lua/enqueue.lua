#!lua
-- Appends messages to the streams of their priorities.
--
-- KEYS[1]  queue name
-- ARGV     six per message: id, type, type as JSON, priority, options as JSON members ('"name":1,' or ''),
--          payload as JSON
-- Returns  for each message 1, or 0 if its id exists, also in the history; it is not added then
--
-- Atomic, so that the check of the id and the write are one step: a retried enqueue adds one message. Without
-- allow-oom, so that a full server refuses the whole call.

-- Returns true if a message with this id exists. Deletes the record if another consumer has deleted the entry.
local function is_known(id)
  if redis.call('HEXISTS', RECORDS, id) == 0 then
    return false
  end
  local record = record_of(id)
  if record and record.sid then
    local _, is_there = entry_at(record.stream, record.sid)
    if not is_there then
      unindex(id, record)
      forget(id)
      return false
    end
  end
  return true
end

local created_at = string.format('%.3f', NOW)
local answers, added = {}, {}
for i = 1, #ARGV, 6 do
  local id, kind, kind_json, priority, options, payload = unpack(ARGV, i, i + 5)
  if is_known(id) then
    answers[#answers + 1] = 0
  else
    local about = ',"type":' .. kind_json .. ',"priority":' .. priority .. ',"created_at":' .. created_at .. ','
    local stream = stream_of(tonumber(priority))
    local sid = redis.call('XADD', stream, '*', 'data', '{"id":"' .. id .. '"' .. about .. options .. '"payload":' .. payload .. '}')
    local location = '{"stream":"' .. stream .. '","sid":"' .. sid .. '"'
    redis.call('HSET', RECORDS, id, location .. about .. options .. '"attempt_count":0}')
    index(id, { type = kind, priority = tonumber(priority), sid = sid })
    answers[#answers + 1] = 1
    added[#added + 1] = id
  end
end
if #added > 0 then
  announce_ids('enqueue', added)
end
return answers
