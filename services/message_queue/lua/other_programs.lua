-- What is done for other programs that produce to or consume from the same streams, such as an older service.
--
-- Such a program knows neither records nor deadlines of this queue. Its entries get a record when they are first read.
-- Its own records, in the same hash, have no location and no type.

local SEARCHED = QUEUE .. ':adopted' -- by stream, the last entry searched for messages of other programs
local SIGNED_REASON = 'Signed message: its producer must not sign messages (ENABLE_ENCRYPTION)'

local function is_utf8(value)
  if string.find(value, '\224[\128-\159]') or string.find(value, '\237[\160-\191]')
    or string.find(value, '\240[\128-\143]') or string.find(value, '\244[\144-\191]') then
    return false
  end
  for _, sequence in ipairs({
    '[\240-\244][\128-\191][\128-\191][\128-\191]', '[\224-\239][\128-\191][\128-\191]', '[\194-\223][\128-\191]'
  }) do
    value = string.gsub(value, sequence, ' ')
  end
  return not string.find(value, '[\128-\255]')
end

-- Returns the id of an entry that is not a valid message.
local function undecodable_id(stream, sid)
  return 'undecodable-' .. stream .. '-' .. sid
end

local function dead_letter_entry(stream, sid, data, fields, reason)
  local id = undecodable_id(stream, sid)
  local record = { type = '', priority = priority_of(stream), created_at = NOW, attempt_count = 0, undecodable = true }
  dead_letter(id, record, data or cjson.encode(fields), reason)
  save(id, record)
  redis.call('XACK', stream, GROUP, sid)
  redis.call('XDEL', stream, sid)
  announce_ids('move_to_dlq', { id })
end

-- The priority of a message that a queue other than that of its priority contains.
local function priority_in(message)
  return math.min(math.floor(positive(message.priority) or 0), HIGHEST_PRIORITY)
end

-- Moves a message that waits where no consumer would receive it to the stream of its priority.
local function put_back(id, record, data)
  local stream, sid = record.stream, record.sid
  unindex(id, record)
  end_delivery(id, record)
  record.priority = priority_in(record)
  requeue(id, record, data)
  save(id, record)
  redis.call('XDEL', stream, sid)
  redis.call('XACK', stream, GROUP, sid) -- of one that was parked
end

-- Returns true if an older service requeues the message at this moment: its pipeline, which is not a transaction, has added
-- the new entry, and has not deleted the old one yet.
local function is_being_requeued(id, record)
  return record.deadline_at and redis.call('EXISTS', QUEUE .. ':overdue_requeue_lock') == 1
    and redis.pcall('SISMEMBER', PENDING, id) == 0
end

-- Creates the record of an entry that another producer, or the requeue of another consumer, has added to the stream.
-- Returns nil and the reason if the entry is not a valid message or its id exists.
local function create_record(stream, sid, data)
  local message = data and decoded(data)
  local id = message and identity(data)
  if not id or #id == 0 or #id > MAX_ID_BYTES or string.find(id, '%c') or not is_utf8(id) then
    local signature = data and string.match(data, '^{.*}|(%x+)$')
    return nil, nil, signature and #signature == 64 and SIGNED_REASON or 'Undecodable message'
  end
  local given = validated({ type = message.type, created_at = message.created_at,
    attempt_count = message.attempt_count, custom_ack_timeout = message.custom_ack_timeout,
    custom_max_attempts = message.custom_max_attempts, last_error = message.last_error, failed_at = message.failed_at,
    acknowledged_at = message.acknowledged_at, archived_at = message.archived_at, priority = priority_in(message) })
  local record = record_of(id) or given
  if not record.sid then
    record.priority = given.priority
    for name, value in pairs(given) do
      record[name] = record[name] or value
    end
  elseif not (record.stream == stream and record.sid == sid) then
    local _, is_there = entry_at(record.stream, record.sid)
    if is_there then
      if not is_being_requeued(id, record) then
        return nil, nil, 'Duplicate id'
      end
      redis.call('XACK', record.stream, GROUP, record.sid)
      redis.call('XDEL', record.stream, record.sid)
    end
    end_delivery(id, record)
    unindex(id, record)
  end
  if record.type == '' then
    record.type = given.type -- records of other consumers have no type
  end
  record.stream, record.sid = stream, sid
  record.created_at = math.min(record.created_at, string.match(sid, '^%d+') / 1000) -- its producer's clock may be ahead
  if stream == QUEUE or priority_of(stream) > 0 then
    record.priority = priority_of(stream)
  end
  return id, record
end

-- Returns the id, the record and the data of an entry; no record if there is none of this entry.
local function known_entry(stream, sid, fields)
  local data, id = data_of(fields)
  id = identity(data, id)
  local text = id and redis.call('HGET', RECORDS, id)
  return id, text and record_at(text, stream, sid, data), data
end

-- Returns the id, the record and the data of an entry. Dead-letters an entry that is not a valid message.
local function read_entry(stream, sid, fields)
  local id, record, data = known_entry(stream, sid, fields)
  if record then
    return id, record, data
  end
  local reason
  id, record, reason = create_record(stream, sid, data)
  if not id then
    dead_letter_entry(stream, sid, data, fields, reason)
    return nil
  end
  save(id, record) -- so that another entry with this id is a duplicate, also in the same call
  return id, record, data
end

local search_ends

-- Returns the last searched entry of a stream, or nil.
local function searched_until(stream)
  search_ends = search_ends or by_name(redis.call('HGETALL', SEARCHED))
  return search_ends[stream]
end

-- Creates the records of some entries of a stream, in stream order, unless only known messages are wanted, and adds
-- them to their indexes if type indexes are kept; each entry is searched once. Pending entries get theirs when they get
-- a deadline. Returns the number of new records, and true if there are no more entries.
local function adopt_entries(stream, is_known_only)
  local state, after = STATES_BY_STREAM[stream], searched_until(stream)
  local entries, is_end = read_entries_of(stream, after and '(' .. after or '-', '+')
  local created, reached = 0, nil
  for i, entry in ipairs(entries) do
    if i > 1 and is_slice_full() then
      is_end = false
      break
    end
    reached, handled = entry[1], handled + 1
    local id, record, data = known_entry(stream, entry[1], entry[2])
    local is_new = not record and not is_known_only
    if is_new then
      id, record = create_record(stream, entry[1], data)
    end
    if id and record and (is_new or record.unindexed and is_index_kept()) and (state or is_waiting(id, record)) then
      if not state then
        index(id, record)
      end
      save(id, record)
      created, handled = created + (is_new and 1 or 0), handled + 1
    end
  end
  if reached then
    search_ends[stream] = reached
    redis.call('HSET', SEARCHED, stream, reached)
  end
  return created, is_end
end
