#!lua
-- Adds messages at the tail of the streams of their priorities.
--
-- ARGV     six for each message: id, type, type as JSON, priority, options as JSON members ('"name":1,' or ''),
--          payload as JSON
-- Returns  for each message 1, or 0 when its id is already stored or in the history: then nothing is added
--
-- Atomic, so that the look for the id and the entry are one: a producer that repeats itself adds one message. Without
-- the flag allow-oom: a full server refuses it as a whole.

-- Tells whether a message of this id is there. Another consumer may have deleted it without telling: then it is not.
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
    local where = '{"stream":"' .. stream .. '","sid":"' .. sid .. '"'
    redis.call('HSET', RECORDS, id, where .. about .. options .. '"attempt_count":0}')
    index(id, { type = kind, priority = tonumber(priority), sid = sid })
    answers[#answers + 1] = 1
    added[#added + 1] = id
  end
end
if #added > 0 then
  announce_ids('enqueue', added)
end
return answers
