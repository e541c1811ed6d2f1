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
  return #ARGV - FIRST_TOKEN + 1 - #delivered.messages
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

-- Returns the members of the event that messages must share to be in one: the deadline, and those of the activity log.
local function event_members(record, deadline)
  return string.format(',"deadline":%d,"attempt":%d', deadline, record.attempt_count)
    .. (record.consumer_id and ',"consumer_id":' .. cjson.encode(record.consumer_id) or '')
    .. (record.custom_max_attempts and string.format(',"max_attempts":%d', record.custom_max_attempts) or '')
end

-- Locks a message; finish_deliveries() must follow.
local function deliver(id, record, data)
  local consumer_id, own_timeout = ARGV[1], tonumber(ARGV[2])
  record.attempt_count = record.attempt_count + 1
  record.lock_token = ARGV[FIRST_TOKEN + #delivered.messages]
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
  local record_text = cjson.encode(record)
  table.insert(delivered.messages, { id, data, record_text })
  table.insert(delivered.ids, id)
  table.insert(delivered.deadlines, deadline)
  table.insert(delivered.deadlines, id)
  table.insert(delivered.records, id)
  table.insert(delivered.records, own_record(record_text))
  local members = event_members(record, deadline)
  local event = delivered.events[members] or { ids = {}, deadline = deadline, age = 0 }
  delivered.events[members] = event
  table.insert(event.ids, id)
  event.age = math.max(event.age, NOW_MS - record.created_at * 1000)
  handled = handled + 1
end

-- Writes the deliveries and returns the reply.
local function finish_deliveries(is_search_complete)
  if #delivered.messages == 0 then
    return { {}, 0, is_search_complete and 0 or 1 }
  end
  redis.call('ZADD', DEADLINES, unpack(delivered.deadlines))
  redis.call('SADD', PENDING, unpack(delivered.ids))
  redis.call('HSET', RECORDS, unpack(delivered.records))
  local first
  for members, event in pairs(delivered.events) do
    local age = string.format(',"age_ms":%.0f', event.age)
    announce('dequeue', '{"count":' .. #event.ids .. ',"ids":' .. array(event.ids) .. members .. age .. '}')
    first = math.min(first or event.deadline, event.deadline)
  end
  write_counts()
  return { delivered.messages, schedule_sweep(first, tonumber(ARGV[4])), 0 }
end
