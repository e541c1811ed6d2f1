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

local ids, answers = {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local stored = redis.call('HMGET', RECORDS, unpack(ids))

-- Returns what an ack needs of each record: its entry, when it was created and delivered, and where the members begin
-- that it keeps. Nil if the caller does not hold all locks, or a record is not as a first delivery has written it.
local function first_deliveries()
  local found = {}
  for i = 1, #ids do
    local token = ARGV[i * 2 + 1]
    local stream, sid, created_at, started_at, held_by, kept_at = string.match(stored[i] or '', FIRST_DELIVERY)
    if not stream or held_by ~= token and (token ~= '' or is_token_required) then
      return nil
    end
    found[i] = { stream = stream, sid = sid, created_at = created_at, started_at = started_at, kept_at = kept_at }
  end
  return found
end

local first = first_deliveries()
if first then
  local datas, acknowledged, records = {}, {}, {}
  for i, id in ipairs(ids) do
    if is_slice_full() then
      break
    end
    handled = handled + 1
    datas[i] = release_entry(id, first[i].stream, first[i].sid) or false
    answers[i] = datas[i] and '1' or '0'
    if datas[i] then
      acknowledged[#acknowledged + 1] = id
    end
  end
  finish_releases()
  if #acknowledged == 0 then
    return table.concat(answers)
  end
  local length = forget_oldest(redis.call('XLEN', ACKNOWLEDGED) + #acknowledged, #acknowledged)
  for i, data in ipairs(datas) do
    if data then
      local sid
      if length and ids[i] == acknowledged[#acknowledged] then
        sid = redis.call('XADD', ACKNOWLEDGED, 'MAXLEN', '=', length, '*', 'data', history_entry(data))
      else
        sid = redis.call('XADD', ACKNOWLEDGED, '*', 'data', history_entry(data))
      end
      local created_at = first[i].created_at
      records[#records + 1] = ids[i]
      records[#records + 1] = moved_record(stored[i], first[i].kept_at, ACKNOWLEDGED, sid, created_at, ACKNOWLEDGED_AT)
      add_duration('due_to_done', created_at)
      add_duration('run', first[i].started_at)
    end
  end
  redis.call('HSET', RECORDS, unpack(records))
  redis.call('INCRBY', TOTAL_ACKNOWLEDGED, number_text(#acknowledged))
  add_count('done', #acknowledged)
  announce_ids('acknowledge', acknowledged)
  return table.concat(answers)
end

-- ---- Locks that are lost, messages that were delivered several times, and those whose deadline was extended

local acknowledged, records = {}, {}
for i, text in ipairs(stored) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local record = locked_record(text, ARGV[i * 2 + 1], is_token_required)
  local started_at = record and record.processing_started_at
  local data = record and release(ids[i], record)
  answers[i] = data and '1' or '0'
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
  announce_ids('acknowledge', acknowledged)
end
return table.concat(answers)
