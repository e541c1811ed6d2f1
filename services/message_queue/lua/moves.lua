-- Moving a message from one state to another, and what is remembered of it: events, outcome, deadline and history.

-- Returns a line of the events of a message.
local function event_line(kind, text, at)
  if string.find(text, '%c') then
    text = string.gsub(text, '%c', ' ')
  end
  if #text > MAX_EVENT_TEXT then
    text = string.gsub(string.sub(text, 1, MAX_EVENT_TEXT), '[\192-\255][\128-\191]*$', '')
  end
  return kind .. ' ' .. at .. ' ' .. text .. '\n'
end

-- Adds a line to the events of a message: kind, time in ms and a text. Touches in a row are one line with their number.
-- The oldest lines are dropped at the limit. A message that was never delivered has none, so it needs no more memory.
local function remember(record, kind, text, at)
  local events = record.events or ''
  if kind == 'touched' then
    local before, count = string.match(events, '^(.*\n)touched %d+ (%d+)\n$')
    events, text = before or events, string.format('%d', (count or 0) + 1)
  end
  events = events .. event_line(kind, text or '', at and string.format('%.0f', at) or NOW_MS_TEXT)
  while #events > MAX_EVENTS_BYTES do
    events = string.match(events, '^[^\n]*\n(.*)$') or ''
  end
  record.events = events
end

-- Moving a message

local function clear_delivery(record)
  record.lock_token, record.consumer_id, record.deadline_at = nil, nil, nil
  record.dequeued_at, record.processing_started_at = nil, nil
end

local function end_delivery(id, record)
  clear_delivery(record)
  redis.pcall('ZREM', DEADLINES, id)
  redis.pcall('SREM', PENDING, id)
end

-- Deletes the records of messages.
local function forget(...)
  redis.call('HDEL', RECORDS, ...)
  redis.pcall('ZREM', DEADLINES, ...)
  redis.pcall('SREM', PENDING, ...)
end

-- Deletes the record of a message if its entry is gone, because another consumer has deleted it. Returns true if it is.
local function forget_if_lost(id, record)
  local _, is_there = entry_at(record.stream, record.sid)
  if not is_there then
    unindex(id, record)
    forget(id)
  end
  return not is_there
end

-- Removes the entry of a message in processing from its stream; finish_releases() must follow. Returns its data, or nil
-- if it is no longer pending, because another consumer has acknowledged it; nothing is written then.

local released_ids, released_sids = {}, {}

local function release_entry(id, stream, sid)
  if redis.call('XACK', stream, GROUP, sid) ~= 1 then
    return nil
  end
  local data = entry_at(stream, sid)
  released_ids[#released_ids + 1] = id
  local sids = released_sids[stream] or {}
  released_sids[stream] = sids
  sids[#sids + 1] = sid
  if not data then
    redis.call('HDEL', RECORDS, id) -- deleted by another consumer
  end
  return data
end

local function release(id, record)
  local data = release_entry(id, record.stream, record.sid)
  clear_delivery(record)
  return data
end

local function finish_releases()
  if #released_ids > 0 then
    redis.pcall('ZREM', DEADLINES, unpack(released_ids))
    redis.pcall('SREM', PENDING, unpack(released_ids))
    for stream, sids in pairs(released_sids) do
      redis.call('XDEL', stream, unpack(sids))
    end
  end
end

-- Appends a message to the stream of its priority; its record must be saved then.
local function requeue(id, record, data)
  append(stream_of(record.priority), id, record, data)
  index(id, record)
  local kind = string.match(data, '^{"id":"[^"]*","type":"([^"\\]*)"')
  if kind and kind ~= record.type then -- an operator has changed it, and the entry wakes only consumers of its own type
    redis.call('XADD', RESUMES, 'MAXLEN', 1, '*', 'type', record.type)
  end
end

-- For programs that read only entries, the outcome of a finished message is appended to its entry as JSON members after
-- the payload. They are removed when the message is requeued.

local function with_outcome(record, data, members)
  if record.undecodable or string.sub(data, -1) ~= '}' then
    return data
  end
  local added = string.sub(cjson.encode(members), 2)
  record.added = #added
  return string.sub(data, 1, -2) .. ',' .. added
end

local function without_outcome(record, data)
  local at = record.added and #data - record.added
  record.added = nil
  if at and string.sub(data, at, at) == ',' then
    return string.sub(data, 1, at - 1) .. '}'
  end
  return data
end

-- Moves a message to the dead letters; its record must be saved then.
local function dead_letter(id, record, data, reason)
  record.failed_at, record.last_error = NOW, reason
  remember(record, 'dead-lettered', reason)
  append(DEAD, id, record, with_outcome(record, data, {
    attempt_count = record.attempt_count, failed_at = NOW, last_error = reason
  }))
end

local function identity(data, id)
  id = id or (data and string.match(data, '^{"id":"([%w_.:@-]+)"'))
  if id or not data then
    return id
  end
  local message = decoded(data)
  return message and text(message.id)
end

-- Deadlines

-- Registers a sweep at the deadline and returns the ms until then; 0 if a sweep is scheduled early enough. `period` is
-- the ms between periodic sweeps; 0 if the caller cannot schedule sweeps.
local function schedule_sweep(deadline, period)
  if deadline >= NOW_MS + period then
    return 0
  end
  local scheduled_at = tonumber(redis.call('GET', NEXT_SWEEP) or 0)
  if scheduled_at > NOW_MS and scheduled_at <= deadline then
    return 0
  end
  redis.call('SET', NEXT_SWEEP, deadline, 'PX', math.max(deadline - NOW_MS, 0) + period)
  return math.max(deadline - NOW_MS, 1)
end

local function set_deadline(id, record, deadline)
  record.deadline_at = deadline / 1000
  redis.call('ZADD', DEADLINES, deadline, id)
end

-- Returns the record in a text if the caller has locked the message, or nil and UNKNOWN or LOCK_LOST.
local function locked_record(text, token, is_token_required)
  local record = text and unpacked(text)
  if not record then
    return nil, 'UNKNOWN'
  end
  local is_holder = record.lock_token == token or (token == '' and not is_token_required)
  if not record.deadline_at or not is_holder then
    return nil, 'LOCK_LOST'
  end
  return record
end

-- Adds an acknowledged message to the history; its record must be saved then, and trim_history() follow.
local function add_to_history(id, record, data)
  record.acknowledged_at = NOW
  remember(record, 'acknowledged')
  append(ACKNOWLEDGED, id, record, with_outcome(record, data, {
    attempt_count = record.attempt_count, acknowledged_at = NOW
  }))
end

-- Returns true if an encoded record of ours tells this location.
local function is_encoded_at(text, stream, sid)
  return string.find(text, sid, 1, true) and string.find(text, stream, 1, true)
end

-- Counts messages that were added to the history, and removes the oldest ones with their records.
local function trim_history(added)
  redis.call('INCRBY', TOTAL_ACKNOWLEDGED, number_text(added))
  local length = redis.call('XLEN', ACKNOWLEDGED)
  local excess = math.min(length - MAX_ACKNOWLEDGED, added + MAX_READ) -- another program may have retained many more
  if excess <= 0 then
    return
  end
  local ids, sids, oldest = {}, {}, {}
  for _, entry in ipairs(redis.call('XRANGE', ACKNOWLEDGED, '-', '+', 'COUNT', excess)) do
    ids[#ids + 1], sids[#sids + 1] = identity(data_of(entry[2])) or '', entry[1]
  end
  for i, text in ipairs(redis.call('HMGET', RECORDS, unpack(ids))) do
    if text and is_encoded_at(text, ACKNOWLEDGED, sids[i]) then
      oldest[#oldest + 1] = ids[i]
    end
  end
  if #oldest > 0 then
    redis.call('HDEL', RECORDS, unpack(oldest))
  end
  redis.call('XTRIM', ACKNOWLEDGED, 'MAXLEN', '=', string.format('%d', length - excess))
end

-- Returns the last delivered id of the group, after which all entries wait, and the number of pending entries.
local function last_delivered(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups.err and {} or groups) do
    local about = by_name(group)
    if about.name == GROUP then
      return about['last-delivered-id'], about.pending
    end
  end
  return '0-0', 0
end

-- Returns true if the group has delivered an entry that was not acknowledged since.
local function is_pending(stream, sid)
  local found = redis.pcall('XPENDING', stream, GROUP, sid, sid, 1)
  if found.err and string.sub(found.err, 1, 7) ~= 'NOGROUP' then -- another program may have deleted the group
    error(found.err)
  end
  return #found > 0
end

local function is_waiting(id, record)
  return index_member('', record) > index_member('', { sid = (last_delivered(record.stream)) }) or is_parked(id, record)
end
