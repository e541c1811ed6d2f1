-- Delivery to a consumer, for the scripts that dequeue.
--
-- ARGV     number of priorities, consumer id, ack timeout in ms ('' for the message's own), default ack timeout in ms, ms
--          between periodic sweeps (0: no sweep can be scheduled), type ('' for any), whether other programs produce to
--          the streams ('1' or '0'), then a lock token for each message that the consumer takes
-- Returns  {ms until a sweep that the caller must schedule, or 0; 1 if the search reached the end of its slice before any
--          message and the caller must call again, else 0; then id, data and record of each message}. A flat list: each
--          list in a reply costs as much as a command.

local FIRST_TOKEN = 8 -- in ARGV
local taken = { count = 0, reply = { 0, 0 }, ids = {}, deadlines = {}, records = {}, events = {} }

local function count_wanted()
  return #ARGV - FIRST_TOKEN + 1 - taken.count
end

-- Reads entries of a stream that nobody has read. They must be delivered.
local function read_new(stream, count)
  local answer = redis.pcall('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', count, 'STREAMS', stream, '>')
  if answer and answer.err then
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    answer = redis.call('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return answer and answer[1][2] or {}
end

-- Reads the next entries: few at a time, because each may have 1 MiB and is delivered once it is read.
local function next_entries(stream)
  local count = math.min(count_wanted(), next_read)
  next_read = math.min(next_read * 2, MAX_READ)
  return read_new(stream, count)
end

-- Adds a delivery to those that finish_deliveries() writes. Takes the deadline in ms as a text, and the members of the
-- event: messages that share them are in one.
local function add_delivery(id, data, record_text, deadline, members, created_at)
  local at, reply = taken.count + 1, taken.reply
  taken.count, taken.ids[at] = at, id
  reply[at * 3], reply[at * 3 + 1], reply[at * 3 + 2] = id, data, record_text
  taken.deadlines[at * 2 - 1], taken.deadlines[at * 2] = deadline, id
  taken.records[at * 2 - 1], taken.records[at * 2] = id, record_text
  local event = taken.events[members]
  if not event then
    event = { ids = {}, deadline = tonumber(deadline), age = 0 }
    taken.events[members] = event
  end
  event.ids[#event.ids + 1] = id
  event.age = math.max(event.age, NOW_MS - created_at * 1000)
  handled = handled + 1
end

-- Locks a message; finish_deliveries() must follow.
local function deliver(id, record, data)
  local consumer_id, own_timeout = ARGV[2], tonumber(ARGV[3])
  record.attempt_count = record.attempt_count + 1
  record.lock_token = ARGV[FIRST_TOKEN + taken.count]
  record.consumer_id = consumer_id ~= '' and consumer_id or nil
  record.dequeued_at, record.processing_started_at = NOW, NOW
  if record.attempt_count == 1 then
    add_duration('wait', record.created_at)
  end
  record.custom_ack_timeout = record.custom_ack_timeout or (own_timeout and own_timeout / 1000)
  local timeout = own_timeout or (record.custom_ack_timeout or ARGV[4] / 1000) * 1000
  local deadline = NOW_MS + math.ceil(timeout)
  record.deadline_at = deadline / 1000
  remember(record, 'delivered', record.attempt_count .. ' ' .. consumer_id)
  deadline = string.format('%.0f', deadline)
  local members = ',"deadline":' .. deadline .. string.format(',"attempt":%d', record.attempt_count)
    .. (record.consumer_id and ',"consumer_id":' .. cjson.encode(record.consumer_id) or '')
    .. (record.custom_max_attempts and string.format(',"max_attempts":%d', record.custom_max_attempts) or '')
  add_delivery(id, data, packed(record), deadline, members, record.created_at)
end

-- Writes the deliveries and returns the reply.
local function finish_deliveries(is_search_complete)
  if taken.count == 0 then
    return { 0, is_search_complete and 0 or 1 }
  end
  redis.call('ZADD', DEADLINES, unpack(taken.deadlines))
  redis.call('SADD', PENDING, unpack(taken.ids))
  redis.call('HSET', RECORDS, unpack(taken.records))
  local first
  for members, event in pairs(taken.events) do
    announce('dequeue', '{' .. members_of(event.ids) .. members .. string.format(',"age_ms":%d}', event.age + 0.5))
    first = math.min(first or event.deadline, event.deadline)
  end
  taken.reply[1] = schedule_sweep(first, tonumber(ARGV[5]))
  return taken.reply
end
