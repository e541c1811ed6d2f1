#!lua flags=allow-oom
-- Acknowledges messages and moves them to the history.
--
-- KEYS[1]  queue name
-- ARGV     whether a token is required ('1' or '0'), then id and lock token ('' for none) of each message
-- Returns  a text: for each message of the slice, which begins with the first, 1, or 0 if the caller does not hold the lock;
--          nothing is written for it then. The caller must call again for the others.
--
-- Atomic, so that exactly one of a late ack and a requeue succeeds. allow-oom, so that a full server can be drained.

local is_token_required = ARGV[1] == '1'
local OUTCOME = '"attempt_count":1,"acknowledged_at":' .. NOW_TEXT .. '}'

-- Returns the entry of the history for that of a first delivery.
local function history_entry(data)
  return string.sub(data, 1, -2) .. ',' .. OUTCOME
end

-- How the record of a first delivery ends in the history.
local ACKNOWLEDGED_AT = 'acknowledged ' .. NOW_MS_TEXT .. ' \\n","acknowledged_at":' .. NOW_TEXT
  .. ',"added":' .. #OUTCOME .. '}'

-- One message, whose record is as a first delivery has written it, without the tables that several need. The oldest entry
-- of the history is forgotten for it.
local free = #ARGV == 3 and MAX_ACKNOWLEDGED - redis.call('XLEN', ACKNOWLEDGED) or -1
local oldest = free == 0 and redis.call('XRANGE', ACKNOWLEDGED, '-', '+', 'COUNT', '1')[1]
local oldest_id = oldest and string.match(data_of(oldest[2]) or '', '^{"id":"([%w_.:@-]+)"')
if oldest_id or free > 0 then
  local id, token = ARGV[2], ARGV[3]
  local stored, oldest_record = unpack(redis.call('HMGET', RECORDS, id, oldest_id or id))
  local stream, sid, created_at, started_at, held_by, kept_at = string.match(stored or '', FIRST_DELIVERY)
  if stream and (held_by == token or token == '' and not is_token_required) then
    if redis.call('XACK', stream, GROUP, sid) ~= 1 then
      return '0'
    end
    local entry = redis.call('XRANGE', stream, sid, sid)[1]
    local data = entry and data_of(entry[2])
    redis.pcall('ZREM', DEADLINES, id)
    redis.pcall('SREM', PENDING, id)
    if not data then
      redis.call('HDEL', RECORDS, id) -- deleted by another consumer
      return '0'
    end
    redis.call('XDEL', stream, sid)
    if oldest_id and oldest_record and is_encoded_at(oldest_record, ACKNOWLEDGED, oldest[1]) then
      redis.call('HDEL', RECORDS, oldest_id)
    end
    sid = redis.call('XADD', ACKNOWLEDGED, 'MAXLEN', '=', MAX_ACKNOWLEDGED, '*', 'data', history_entry(data))
    redis.call('HSET', RECORDS, id, moved_record(stored, kept_at, ACKNOWLEDGED, sid, created_at, ACKNOWLEDGED_AT))
    redis.call('INCRBY', TOTAL_ACKNOWLEDGED, '1')
    announce_with('acknowledge', '{"count":1,"ids":["' .. id .. '"]}',
      'due_to_done', created_at, 'run', started_at, 'done', '1')
    return '1'
  end
end

-- ---- Several messages

local ids, answers, acknowledged, records = {}, {}, {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local stored = redis.call('HMGET', RECORDS, unpack(ids))

local function add(id, record_text, created_at, started_at)
  local at = #records
  acknowledged[#acknowledged + 1], records[at + 1], records[at + 2] = id, id, record_text
  add_duration('due_to_done', created_at)
  add_duration('run', started_at)
end

-- Writes what follows from the answers, and returns the reply.
local function finish()
  finish_releases()
  if #acknowledged > 0 then
    redis.call('HSET', RECORDS, unpack(records))
    trim_history(#acknowledged)
    add_count('done', #acknowledged)
    announce_ids('acknowledge', acknowledged)
  end
  return table.concat(answers)
end

local is_first_delivery = true
for i, id in ipairs(ids) do
  local token = ARGV[i * 2 + 1]
  local stream, sid, created_at, started_at, held_by, kept_at = string.match(stored[i] or '', FIRST_DELIVERY)
  is_first_delivery = stream ~= nil
  if not is_first_delivery or is_slice_full() then
    break
  end
  handled, answers[i] = handled + 1, '0'
  local data = (held_by == token or token == '' and not is_token_required) and release_entry(id, stream, sid)
  if data then
    answers[i] = '1'
    sid = redis.call('XADD', ACKNOWLEDGED, '*', 'data', history_entry(data))
    add(id, moved_record(stored[i], kept_at, ACKNOWLEDGED, sid, created_at, ACKNOWLEDGED_AT), created_at, started_at)
  end
end
if is_first_delivery then
  return finish()
end

-- ---- Messages that were delivered several times, and those whose deadline was extended or whose lock is lost

for i = #answers + 1, #ids do
  if is_slice_full() then
    break
  end
  handled, answers[i] = handled + 1, '0'
  local record = locked_record(stored[i], ARGV[i * 2 + 1], is_token_required)
  local started_at = record and record.processing_started_at or NOW
  local data = record and release(ids[i], record)
  if data then
    answers[i] = '1'
    add_to_history(ids[i], record, data)
    add(ids[i], packed(record), record.created_at, started_at)
  end
end
return finish()
