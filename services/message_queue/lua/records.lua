-- A message: its entry in a stream, and its record in a hash.
--
-- A stream entry has the message as it was enqueued, in one field `data`. It is copied between streams byte for byte,
-- never decoded and encoded again, because cjson turns [] into {} and rounds large numbers. Mutable fields are in the
-- message's record, a JSON object in a hash, by message id:
--   stream, sid                    location of the entry
--   type, priority, created_at, custom_ack_timeout, custom_max_attempts
--   attempt_count, last_error, failed_at, acknowledged_at, archived_at, history
--   events                         what happened since the first delivery, one line each; see remember()
--   lock_token, consumer_id, dequeued_at, processing_started_at, deadline_at      while it is processed
--   added                          number of bytes appended to the entry of a finished message
--   undecodable                    the entry is not a valid message, and kept for operators
--   unindexed                      a waiting message is not in the index of its type
--   passed_over                    the entry that the last round of check_records.lua found to be passed over
-- The record of a message that was never delivered is only its location, {"at":"<priority>:<entry id>"}, unless type
-- indexes are kept: the other fields are in its entry.

-- Location of an entry

local function padded(part)
  return string.sub('00000000000000000000' .. part, -#LAST_SID_PART)
end

-- Returns an entry id padded so that text order is stream order; nil if it is not an entry id.
local function sortable(sid)
  local ms, sequence = string.match(sid, '^(%d+)-(%d+)$')
  if ms and #ms <= #LAST_SID_PART and #sequence <= #LAST_SID_PART then
    ms, sequence = padded(ms), padded(sequence)
    return ms <= LAST_SID_PART and sequence <= LAST_SID_PART and ms .. '-' .. sequence or nil
  end
end

local function is_entry_location(stream, sid)
  return type(stream) == 'string' and type(sid) == 'string' and sortable(sid)
    and (stream == QUEUE or stream == TYPED or stream == MANUAL or STATES_BY_STREAM[stream]
      or string.sub(stream, 1, #QUEUE) == QUEUE and string.find(stream, '^_p%d+$', #QUEUE + 1))
end

-- Reads entries of a stream: one at a time while they are large, because each may have 1 MiB.

local next_read = 2

local function read_entries_of(stream, from, to)
  local count = next_read
  local entries = redis.pcall('XRANGE', stream, from, to, 'COUNT', count)
  if entries.err then
    return {}, true
  end
  if #entries == count then
    next_read = math.min(count * 2, MAX_READ)
  end
  for _, entry in ipairs(entries) do
    local size = 0
    for _, value in ipairs(entry[2]) do
      size = size + #value
    end
    handled_bytes = handled_bytes + size
    next_read = size > SMALL_ENTRY_BYTES and 1 or next_read
  end
  return entries, #entries < count
end

-- Records

local last_large, last_decoded -- cache: several functions decode the same large text

local function decoded(text)
  if text == last_large then
    return last_decoded
  end
  handled_bytes = handled_bytes + #text * DECODE_COST
  local ok, value = pcall(cjson.decode, text)
  value = ok and type(value) == 'table' and value or nil
  if #text > SMALL_ENTRY_BYTES then
    last_large, last_decoded = text, value
  end
  return value
end

-- Returns a finite number, or nil: other programs write records too, and cjson accepts NaN.
local function finite(value)
  local number = tonumber(value)
  return number and number > -1e15 and number < 1e15 and number or nil
end

-- Returns a time in seconds, of the years 1970 to 9999, or nil.
local function moment(value)
  local number = finite(value)
  number = number and (number >= MIN_MILLISECONDS and number / 1000 or number)
  return number and number >= 0 and number <= LAST_SECOND and number or nil
end

local function positive(value)
  local number = finite(value)
  return number and number > 0 and math.min(number, MAX_NUMBER) or nil
end

local function text(value)
  return type(value) == 'string' and value or nil
end

local function valid_attempts(history)
  local earlier = {}
  for _, attempt in ipairs(type(history) == 'table' and history or {}) do
    if type(attempt) == 'table' and #earlier < MAX_REPLAY_HISTORY then
      earlier[#earlier + 1] = {
        attempt_count = finite(attempt.attempt_count),
        failed_at = moment(attempt.failed_at),
        last_error = text(attempt.last_error),
      }
    end
  end
  return #earlier > 0 and earlier or nil
end

-- Returns a record with valid fields only, because other programs write records too, and an error in the middle of a
-- script would leave its writes half done.
local function validated(record)
  local is_ours = is_entry_location(record.stream, record.sid)
  return {
    stream = is_ours and record.stream or nil,
    sid = is_ours and record.sid or nil,
    type = text(record.type) or '',
    priority = math.floor(positive(record.priority) or 0),
    created_at = moment(record.created_at) or NOW,
    custom_ack_timeout = positive(record.custom_ack_timeout),
    custom_max_attempts = positive(record.custom_max_attempts),
    attempt_count = positive(record.attempt_count) or 0,
    last_error = text(record.last_error),
    failed_at = moment(record.failed_at),
    acknowledged_at = moment(record.acknowledged_at),
    archived_at = moment(record.archived_at),
    history = valid_attempts(record.history),
    events = is_ours and text(record.events) or nil,
    lock_token = text(record.lock_token),
    consumer_id = text(record.consumer_id),
    dequeued_at = moment(record.dequeued_at),
    processing_started_at = moment(record.processing_started_at),
    deadline_at = is_ours and finite(record.deadline_at) or nil,
    added = is_ours and positive(record.added) or nil,
    undecodable = is_ours and record.undecodable == true or nil,
    unindexed = is_ours and record.unindexed == true or nil,
  }
end

-- How records begin that this release has written: they need no validation.
local OWN_RECORD = '{"v":1,'

-- A record that dequeue.lua has written as text: the encoder writes no spaces. Captures the entry, when the
-- message was created and delivered, the token, and where the members begin that an ack or a sweep keeps.
local FIRST_DELIVERY = '^{"v":1, "stream":"([^"]*)","sid":"([^"]*)","created_at":([^,]*),"processing_started_at":([^,]*),'
  .. '"dequeued_at":[^,]*,"deadline_at":[^,]*,.-"lock_token":"([^"]*)",()'

-- Returns the record of a message that leaves its first delivery. It keeps the members from `kept_at` on, and ends with
-- an event and the members after the events.
local function moved_record(stored, kept_at, stream, sid, created_at, ending)
  return OWN_RECORD .. '"stream":"' .. stream .. '","sid":"' .. sid .. '","created_at":' .. created_at .. ','
    .. string.sub(stored, kept_at, -3) .. ending
end

local function packed(record)
  return OWN_RECORD .. string.sub(cjson.encode(record), 2)
end

local function unpacked(text)
  local record = decoded(text)
  if record and string.sub(text, 1, #OWN_RECORD) == OWN_RECORD then
    record.v = nil
    return record
  end
  return record and validated(record) or nil
end

local function packed_location(priority, sid)
  return '{"at":"' .. priority .. ':' .. sid .. '"}'
end

-- Returns the record of a message that was never delivered, from its entry; nil if the entry is not ours.
local function waiting_record(stream, sid, data)
  local kind, priority, created_at, payload = string.match(data,
    '^{"id":"[^"]*","type":"([^"\\]*)","priority":(%d+),"created_at":([%d.]+),"payload"()')
  if payload then
    return {
      stream = stream, sid = sid, type = kind, priority = tonumber(priority), created_at = tonumber(created_at),
      attempt_count = 0, unindexed = true
    }
  end
  local at = string.find(data, ',"payload":', 1, true) -- it has options, or its type has escapes
  local record = at and decoded(string.sub(data, 1, at - 1) .. '}')
  if record and type(record.type) == 'string' and type(record.created_at) == 'number' then
    record.id, record.stream, record.sid, record.attempt_count, record.unindexed = nil, stream, sid, 0, true
    return record
  end
end

local function is_location(text)
  return string.sub(text, 1, 6) == '{"at":'
end

local function located(text)
  local priority, sid = string.match(text, '^{"at":"(%d%d?):(%d+%-%d+)"}$')
  if priority and sortable(sid) then
    return stream_of(tonumber(priority)), sid
  end
end

-- Returns the record in a text if it belongs to the given entry.
local function record_at(text, stream, sid, data)
  if is_location(text) then
    local priority = priority_of(stream)
    local is_here = text == packed_location(priority, sid) and stream_of(priority) == stream
    return is_here and waiting_record(stream, sid, data) or nil
  end
  local record = unpacked(text)
  return record and record.stream == stream and record.sid == sid and record or nil
end

local function save(id, record)
  redis.call('HSET', RECORDS, id, packed(record))
end

local function state_of(record)
  return STATES_BY_STREAM[record.stream] or (record.deadline_at and 'processing') or 'main'
end

-- Entries

local function data_of(fields)
  local data, id
  for i = 1, #fields, 2 do
    if fields[i] == 'data' then
      data = fields[i + 1]
    elseif fields[i] == 'id' then
      id = fields[i + 1] -- of an undecodable entry, whose data has no id
    end
  end
  return data, id
end

local function entry_at(stream, sid)
  local entry = redis.call('XRANGE', stream, sid, sid)[1]
  if entry then
    local data = data_of(entry[2])
    handled_bytes = handled_bytes + (data and #data or 0)
    return data, true
  end
end

-- Returns the record in a text, and the message's entry if it was read.
local function record_in(text)
  local stream, sid = located(text)
  if not stream then
    return unpacked(text)
  end
  local data = entry_at(stream, sid)
  return data and waiting_record(stream, sid, data)
    or validated({ stream = stream, sid = sid, unindexed = true }), data
end

local function record_of(id)
  local text = redis.call('HGET', RECORDS, id)
  if text then
    return record_in(text)
  end
end

local function append(stream, id, record, data)
  if record.undecodable then
    record.sid = redis.call('XADD', stream, '*', 'data', data, 'id', id)
  else
    record.sid = redis.call('XADD', stream, '*', 'data', data)
  end
  record.stream = stream
end
