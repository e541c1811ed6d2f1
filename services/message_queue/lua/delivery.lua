-- Delivery to a consumer, for the scripts that dequeue.
--
-- ARGV     consumer id, ack timeout in ms ('' for the message's own), default ack timeout in ms, ms between periodic
--          sweeps (0: no sweep can be scheduled), priority levels, type ('' for any), whether other programs produce to
--          the streams ('1' or '0'), then a lock token for each message that the consumer takes
-- Returns  {list of {id, data, record}, ms until a sweep that the caller must schedule, or 0; 1 if the search reached
--          the end of its slice before any message and the caller must call again, else 0}

local FIRST_TOKEN = 8 -- in ARGV
local delivered = { messages = {}, ids = {}, deadlines = {}, records = {}, events = {} }

local function count_wanted()
  return #ARGV - FIRST_TOKEN + 1 - #delivered.ids
end

-- Reads the next entries of a stream: few at a time, because each may have 1 MiB and is delivered once it is read.
local function next_entries(stream)
  local count = math.min(count_wanted(), next_read)
  next_read = math.min(next_read * 2, MAX_READ)
  local answer = redis.pcall('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', count, 'STREAMS', stream, '>')
  if answer and answer.err then
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    answer = redis.call('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return answer and answer[1][2] or {}
end

-- Adds a delivery to those that finish_deliveries() writes. Takes the deadline in ms as a text, and the members of the
-- event: messages that share them are in one.
local function add_delivery(id, data, record_text, deadline, members, created_at)
  local at = #delivered.ids + 1
  delivered.ids[at] = id
  delivered.messages[at] = { id, data, record_text }
  delivered.deadlines[at * 2 - 1], delivered.deadlines[at * 2] = deadline, id
  delivered.records[at * 2 - 1], delivered.records[at * 2] = id, own_record(record_text)
  local event = delivered.events[members]
  if not event then
    event = { ids = {}, deadline = tonumber(deadline), age = 0 }
    delivered.events[members] = event
  end
  event.ids[#event.ids + 1] = id
  event.age = math.max(event.age, NOW_MS - created_at * 1000)
  handled = handled + 1
end

-- Locks a message; finish_deliveries() must follow.
local function deliver(id, record, data)
  local consumer_id, own_timeout = ARGV[1], tonumber(ARGV[2])
  record.attempt_count = record.attempt_count + 1
  record.lock_token = ARGV[FIRST_TOKEN + #delivered.ids]
  record.consumer_id = consumer_id ~= '' and consumer_id or nil
  record.dequeued_at, record.processing_started_at = NOW, NOW
  if record.attempt_count == 1 then
    add_duration('wait', record.created_at)
  end
  record.custom_ack_timeout = record.custom_ack_timeout or (own_timeout and own_timeout / 1000)
  local timeout = own_timeout or (record.custom_ack_timeout or ARGV[3] / 1000) * 1000
  local deadline = NOW_MS + math.ceil(timeout)
  record.deadline_at = deadline / 1000
  remember(record, 'delivered', record.attempt_count .. ' ' .. consumer_id)
  deadline = string.format('%.0f', deadline)
  local members = ',"deadline":' .. deadline .. string.format(',"attempt":%d', record.attempt_count)
    .. (record.consumer_id and ',"consumer_id":' .. cjson.encode(record.consumer_id) or '')
    .. (record.custom_max_attempts and string.format(',"max_attempts":%d', record.custom_max_attempts) or '')
  add_delivery(id, data, cjson.encode(record), deadline, members, record.created_at)
end

local first_deliveries = {} -- what the first deliveries of a call share, by the options of their messages

-- Returns the members of a record from its processing_started_at to its token, and those after its priority; the
-- deadline, and the members of the event.
local function first_delivery_with(options)
  local consumer_id, timeout = ARGV[1], ARGV[2]
  local own_timeout = string.match(options, '"custom_ack_timeout":([^,]*)')
  local own_attempts = string.match(options, '"custom_max_attempts":([^,]*)')
  if timeout == '' then
    timeout = own_timeout and own_timeout * 1000 or ARGV[3]
  elseif not own_timeout then
    options = options .. '"custom_ack_timeout":' .. timeout / 1000 .. ','
  end
  local deadline = string.format('%.0f', NOW_MS + math.ceil(timeout))
  local consumer = consumer_id ~= '' and '"consumer_id":' .. cjson.encode(consumer_id) .. ',' or ''
  local event = cjson.encode(event_line('delivered', '1 ' .. consumer_id, NOW_MS_TEXT))
  return {
    started = ',"processing_started_at":' .. NOW_TEXT .. ',"dequeued_at":' .. NOW_TEXT
      .. ',"deadline_at":' .. string.sub(deadline, 1, -4) .. '.' .. string.sub(deadline, -3) .. ',' .. consumer .. '"lock_token":"',
    options = ',' .. options .. '"events":' .. event .. '}',
    deadline = deadline,
    members = ',"deadline":' .. deadline .. ',"attempt":1'
      .. (consumer ~= '' and ',' .. string.sub(consumer, 1, -2) or '')
      .. (own_attempts and ',"max_attempts":' .. own_attempts or '')
  }
end

-- Locks a message that was never delivered, like deliver(), without decoding and encoding its record. Returns false, and
-- does nothing, if the entry is not as enqueue.lua adds it.
local function deliver_first(id, stream, sid, data)
  local kind, priority, created_at, options = string.match(data,
    '^{"id":"[^"]*","type":("[^"\\]*"),"priority":(%d+),"created_at":([%d.]+),([%w_":.,+-]-)"payload":')
  if not kind then
    return false
  end
  local shared = first_deliveries[options]
  if not shared then
    shared = first_delivery_with(options)
    first_deliveries[options] = shared
  end
  add_duration('wait', created_at)
  add_delivery(id, data, '{ "stream":"' .. stream .. '","sid":"' .. sid .. '","created_at":' .. created_at .. shared.started
    .. ARGV[FIRST_TOKEN + #delivered.ids] .. '","attempt_count":1,"type":' .. kind .. ',"priority":' .. priority
    .. shared.options, shared.deadline, shared.members, created_at)
  return true
end

-- Writes the deliveries and returns the reply.
local function finish_deliveries(is_search_complete)
  if #delivered.ids == 0 then
    return { {}, 0, is_search_complete and 0 or 1 }
  end
  redis.call('ZADD', DEADLINES, unpack(delivered.deadlines))
  redis.call('SADD', PENDING, unpack(delivered.ids))
  redis.call('HSET', RECORDS, unpack(delivered.records))
  local first
  for members, event in pairs(delivered.events) do
    announce('dequeue', '{' .. members_of(event.ids) .. members .. string.format(',"age_ms":%.0f}', event.age))
    first = math.min(first or event.deadline, event.deadline)
  end
  return { delivered.messages, schedule_sweep(first, tonumber(ARGV[4])), 0 }
end
