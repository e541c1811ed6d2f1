-- Keys, clock and functions of the scripts of the message queue. A script gets only the definitions that it uses, because
-- Redis runs them at every call.
--
-- KEYS[1]  queue name, the prefix of every other key. In Redis Cluster it is in braces, so that all keys share a slot.
--
-- The server may refuse a command in the middle of a script, such as one that the user of Redis may not use, and does not
-- undo those before it. So an entry is deleted when it has been copied, and events are sent at the end. A message leaves
-- DEADLINES and PENDING by pcall: a key to which another program has written another type has nothing to be removed.
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
-- Times in records are seconds, times in keys and replies milliseconds.

local QUEUE = KEYS[1]
local GROUP = QUEUE .. '_group'
local CONSUMER = 'queue-manager' -- shared by all consumers: Redis never forgets a consumer name
local RECORDS = QUEUE .. '_metadata'
local DEADLINES = QUEUE .. ':deadlines'
local PENDING = QUEUE .. ':pending_ids'
local TYPED = QUEUE .. '_typed'
local MANUAL = QUEUE .. '_manual' -- messages that an older service takes by type, or requeues
local DEAD = QUEUE .. '_dlq'
local ACKNOWLEDGED = QUEUE .. '_acknowledged'
local ARCHIVED = QUEUE .. '_archived'
local TOTAL_ACKNOWLEDGED = QUEUE .. ':stats:total_acknowledged'
local TOTAL_REQUEUED = QUEUE .. ':stats:total_requeued' -- by sweeps, like TOTAL_DEAD
local TOTAL_DEAD = QUEUE .. ':stats:total_dead_lettered'
local TYPES = QUEUE .. ':types' -- exists if type indexes are kept: since a consumer first asked for a type
local NEXT_SWEEP = QUEUE .. ':next_sweep'
local PAUSES = QUEUE .. ':pauses' -- by type, who paused it and why, as JSON; '' once resumed, while some are still parked

local MAX_ACKNOWLEDGED = '100' -- acknowledged messages that are retained; a text, because commands format numbers slowly
local MAX_EVENTS = '50000' -- approximate number of events until fold_counts.lua trims them
local MIN_MILLISECONDS = 1e11 -- other programs may write times in ms; as seconds this is the year 5138
local LAST_SECOND = 253402300799 -- of the year 9999
local MAX_NUMBER = 1e9 -- maximum of seconds or attempts in records of other producers
local MAX_REPLAY_HISTORY = 10 -- earlier failures that a replayed message keeps
local MAX_ID_BYTES = 256 -- bytes
local MAX_EVENTS_BYTES = 2000 -- bytes of the events that a record keeps
local MAX_EVENT_TEXT = 200 -- bytes of the text of an event
local LAST_SID_PART = '18446744073709551615'
local HIGHEST_PRIORITY = ARGV[1] - 1 -- in scripts whose first argument is the number of priorities

-- A script blocks all other clients. A script for many messages therefore stops after this number of messages or
-- payload bytes, at most 10 ms, and its caller runs it again for the rest.
local MAX_HANDLED = 100
local MAX_BYTES = 1024 * 1024
local DECODE_COST = 6 -- decoding one byte of JSON costs as much as reading this many
local MAX_CLEANED = 10 -- type indexes of which one call drops stale members
local MAX_READ = 8 -- entries per read while they are small
local SMALL_ENTRY_BYTES = 16 * 1024 -- bytes

local clock = redis.call('TIME')
local SECONDS, MILLISECONDS = clock[1], string.sub('00000' .. clock[2], -6, -4)
local NOW_MS_TEXT, NOW_TEXT = SECONDS .. MILLISECONDS, SECONDS .. '.' .. MILLISECONDS
local NOW_MS = tonumber(NOW_MS_TEXT)
local NOW = NOW_MS / 1000

local handled, handled_bytes = 0, 0

local function is_slice_full()
  return handled >= MAX_HANDLED or handled_bytes >= MAX_BYTES
end

local STREAMS_BY_STATE = { dead = DEAD, acknowledged = ACKNOWLEDGED, archived = ARCHIVED }
local STATES_BY_STREAM = { [DEAD] = 'dead', [ACKNOWLEDGED] = 'acknowledged', [ARCHIVED] = 'archived' }

-- Returns a natural number as a text. Formatting one costs as much as a small command.
local function number_text(number)
  return number < 10 and string.sub('0123456789', number + 1, number + 1) or string.format('%d', number)
end

-- The streams of the priorities from 1 on. Most queues have no more; a loop that names them costs three times as much.
local STREAMS = {
  QUEUE .. '_p1', QUEUE .. '_p2', QUEUE .. '_p3', QUEUE .. '_p4', QUEUE .. '_p5', QUEUE .. '_p6', QUEUE .. '_p7',
  QUEUE .. '_p8', QUEUE .. '_p9'
}

local function stream_of(priority)
  return priority > 0 and (STREAMS[priority] or string.format('%s_p%d', QUEUE, priority)) or QUEUE
end

local function priority_of(stream)
  return string.sub(stream, 1, #QUEUE) == QUEUE and tonumber(string.match(stream, '^_p(%d+)$', #QUEUE + 1)) or 0
end

-- Returns a reply of names and values as a table.
local function by_name(reply)
  local values = {}
  for i = 1, #reply, 2 do
    values[reply[i]] = reply[i + 1]
  end
  return values
end

-- Events: each is added to the stream, for clients that reconnect, and published on the channel. Next to the event, an
-- entry has what fold_counts.lua adds up: outcomes with their numbers, and measures with when a duration began.

local EVENTS = QUEUE .. ':events'
local counts = {}

-- Counts; announce() must follow.
local function add_count(name, amount)
  if amount > 0 then
    counts[#counts + 1], counts[#counts + 2] = name, number_text(amount)
  end
end

-- Measures a duration that ends now; announce() must follow. Takes seconds, as a text or a number.
local function add_duration(measure, since)
  local at = #counts
  counts[at + 1], counts[at + 2] = measure, type(since) == 'number' and string.format('%.3f', since) or since
end

local function array(ids)
  if #ids == 1 and not string.find(ids[1], '[^%w_.:@-]') then
    return '["' .. ids[1] .. '"]'
  end
  return #ids > 0 and cjson.encode(ids) or '[]'
end

-- Announces an event with these outcomes and measures, and no others.
local function announce_with(kind, payload, ...)
  local event = '{"type":"' .. kind .. '","timestamp":' .. NOW_MS_TEXT .. ',"payload":' .. payload .. '}'
  redis.call('XADD', EVENTS, 'MAXLEN', '~', MAX_EVENTS, '*', 'event', event, ...)
  redis.call('PUBLISH', QUEUE .. '_events', event)
end

local function announce(kind, payload)
  announce_with(kind, payload, unpack(counts))
  counts = {}
end

local function members_of(ids)
  return '"count":' .. number_text(#ids) .. ',"ids":' .. array(ids)
end

local function announce_ids(kind, ids)
  announce(kind, '{' .. members_of(ids) .. '}')
end

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

-- The index of a type: highest priority first, then stream order.

local function index_member(id, record)
  return sortable(record.sid) .. ':' .. id
end

local is_cleaned, indexes_cleaned = {}, 0

-- Drops members whose messages other consumers have deleted; they start with the first, as this queue does. A batch may
-- have many types: the indexes that it leaves are cleaned later.
local function drop_stale_members(key)
  if not is_cleaned[key] and indexes_cleaned < MAX_CLEANED then
    is_cleaned[key], indexes_cleaned = true, indexes_cleaned + 1
    for _, member in ipairs(redis.call('ZRANGE', key, 0, 1)) do
      if redis.call('HEXISTS', RECORDS, string.match(member, ':(.*)$')) == 0 then
        redis.call('ZREM', key, member)
      end
    end
  end
end

local function add_to_index(kind, members)
  local key = QUEUE .. ':type:' .. kind
  drop_stale_members(key)
  redis.call('ZADD', key, unpack(members))
end

local index_kept

local function is_index_kept()
  if index_kept == nil then
    index_kept = redis.call('EXISTS', TYPES) == 1
  end
  return index_kept
end

-- Adds a waiting message to the index of its type, if type indexes are kept; its record must be saved then.
local function index(id, record)
  record.unindexed = not is_index_kept() or nil
  if not record.unindexed then
    add_to_index(record.type, { -record.priority, index_member(id, record) })
  end
end

-- Pauses: a message of a paused type is parked when its turn comes. Its entry stays where it is, acknowledged for the
-- group, which has passed over it; it is still waiting. Its position is kept in a sorted set of its type, in stream order,
-- and it is claimed for the group once the type is resumed.

local PARKED = QUEUE .. ':parked:'
local RESUMES = QUEUE .. ':resumes' -- stream, see arrivals.py
local pauses_by_type

local function pauses()
  pauses_by_type = pauses_by_type or by_name(redis.call('HGETALL', PAUSES))
  return pauses_by_type
end

local function is_paused(kind)
  return (pauses()[kind] or '') ~= ''
end

local function parked_member(id, record)
  return priority_of(record.stream) .. ':' .. index_member(id, record)
end

local function is_parked(id, record)
  return pauses()[record.type] and redis.call('ZSCORE', PARKED .. record.type, parked_member(id, record))
end

local function park(id, record)
  redis.call('ZADD', PARKED .. record.type, 0, parked_member(id, record))
end

-- Removes a member of the parked messages of a type. Returns true if it was one.
local function remove_parked(kind, member)
  local is_removed = redis.call('ZREM', PARKED .. kind, member) == 1
  if is_removed and not is_paused(kind) and redis.call('EXISTS', PARKED .. kind) == 0 then
    redis.call('HDEL', PAUSES, kind)
    pauses_by_type[kind] = nil
  end
  return is_removed
end

-- Removes a message that leaves its place from the index of its type. Returns true if it was parked.
local function unindex(id, record)
  if not record.unindexed then
    redis.call('ZREM', QUEUE .. ':type:' .. record.type, index_member(id, record))
  end
  record.unindexed = nil
  return not record.deadline_at and pauses()[record.type] and record.sid and remove_parked(record.type, parked_member(id, record))
end

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
