#!lua flags=allow-oom
-- Delivers the next messages to a consumer and locks them: highest priority first, then oldest. Messages of paused types
-- are parked instead.
--
-- KEYS[1]  queue name
-- ARGV and Returns: see delivery.lua. Fewer messages are returned if their payloads are large.
--
-- Atomic, so that a delivered message always has its attempt counted and its deadline set. allow-oom, so that a full
-- server can be drained.

-- An entry as enqueue.lua adds it. Captures the id, the type as JSON, the priority, when it was created, and its options.
local ENQUEUED = '^{"id":"([%w_.:@-]+)","type":("[^"\\]*"),"priority":(%d+),"created_at":([%d.]+),([%w_":.,+-]-)"payload":'

-- Returns of the first delivery of a message with these options: the members of its record from processing_started_at to
-- the token, and those after its priority; the deadline, and the members of the event.
local function first_delivery_with(options)
  local consumer_id, timeout = ARGV[2], ARGV[3]
  local own_timeout = options ~= '' and string.match(options, '"custom_ack_timeout":([^,]*)')
  local own_attempts = options ~= '' and string.match(options, '"custom_max_attempts":([^,]*)')
  if timeout == '' then
    timeout = own_timeout and own_timeout * 1000 or ARGV[4]
  elseif not own_timeout then
    options = options .. '"custom_ack_timeout":' .. timeout / 1000 .. ','
  end
  local deadline = string.format('%d', NOW_MS + math.ceil(timeout))
  local consumer, consumer_member, events = '', '', 'delivered ' .. NOW_MS_TEXT .. ' 1 \\n'
  if consumer_id ~= '' then
    consumer = '"consumer_id":' .. cjson.encode(consumer_id) .. ','
    consumer_member = ',' .. string.sub(consumer, 1, -2)
    events = string.sub(cjson.encode(event_line('delivered', '1 ' .. consumer_id, NOW_MS_TEXT)), 2, -2)
  end
  return ',"processing_started_at":' .. NOW_TEXT .. ',"dequeued_at":' .. NOW_TEXT .. ',"deadline_at":'
    .. string.sub(deadline, 1, -4) .. '.' .. string.sub(deadline, -3) .. ',' .. consumer .. '"lock_token":"',
    ',' .. options .. '"events":"' .. events .. '"}', deadline,
    ',"deadline":' .. deadline .. ',"attempt":1' .. consumer_member
    .. (own_attempts and ',"max_attempts":' .. own_attempts or '')
end

-- Returns the record of a message that is delivered for the first time, as text.
local function first_record(stream, sid, kind, priority, created_at, token, started, rest)
  return OWN_RECORD .. ' "stream":"' .. stream .. '","sid":"' .. sid .. '","created_at":' .. created_at .. started
    .. token .. '","attempt_count":1,"type":' .. kind .. ',"priority":' .. priority .. rest
end

local priority = ARGV[1] - 1
for number = #STREAMS + 1, priority do
  STREAMS[number] = stream_of(number)
end
local found = redis.call('EXISTS', PAUSES, unpack(STREAMS, 1, priority))
local has_pauses = found > 0 and redis.call('EXISTS', PAUSES) == 1
priority = found > 0 and priority or 0
local left = {} -- entries that are read and not delivered

-- One message, that was never delivered and is as enqueue.lua has added it, without the tables that several need.
while #ARGV == FIRST_TOKEN and not has_pauses and #left == 0 do
  if priority < 0 then
    return { 0, 0 }
  end
  local stream = stream_of(priority)
  left = (priority == 0 or redis.call('XLEN', stream) > 0) and read_new(stream, '1') or left
  local entry = left[1]
  local data = entry and entry[2][1] == 'data' and entry[2][2]
  local id, kind, own_priority, created_at, options = string.match(data or '', ENQUEUED)
  if not entry then
    priority = priority - 1
  elseif id and redis.call('HGET', RECORDS, id) == packed_location(priority, entry[1]) then
    local started, rest, deadline, members = first_delivery_with(options)
    local record = first_record(stream, entry[1], kind, own_priority, created_at, ARGV[FIRST_TOKEN], started, rest)
    redis.call('ZADD', DEADLINES, deadline, id)
    redis.call('SADD', PENDING, id)
    redis.call('HSET', RECORDS, id, record)
    local age = string.format('%d', math.max(NOW_MS - created_at * 1000, 0) + 0.5)
    local payload = '{"count":1,"ids":["' .. id .. '"]' .. members .. ',"age_ms":' .. age .. '}'
    announce_with('dequeue', payload, 'wait', created_at)
    return { schedule_sweep(tonumber(deadline), tonumber(ARGV[5])), 0, id, data, record }
  end
end

-- ---- Several messages

local first_deliveries = {} -- what the first deliveries of a call share, by the options of their messages

-- Locks a message that was never delivered, like deliver(), without decoding and encoding its record. Takes what ENQUEUED
-- captures.
local function deliver_first(stream, sid, data, id, kind, priority, created_at, options)
  local shared = first_deliveries[options]
  if not shared then
    shared = { first_delivery_with(options) }
    first_deliveries[options] = shared
  end
  local started, rest, deadline, members = unpack(shared)
  local token = ARGV[FIRST_TOKEN + taken.count]
  local record = first_record(stream, sid, kind, priority, created_at, token, started, rest)
  add_duration('wait', created_at)
  add_delivery(id, data, record, deadline, members, created_at)
end

-- Delivers entries up to the first one of a message that is not as enqueue.lua has added it. Returns the others.
local function deliver_first_of(stream, entries)
  local found, ids, left = {}, {}, {}
  for i, entry in ipairs(entries) do
    found[i] = { string.match(entry[2][1] == 'data' and entry[2][2] or '', ENQUEUED) }
    ids[i] = found[i][1] or ''
  end
  local records = #ids > 0 and redis.call('HMGET', RECORDS, unpack(ids))
  for i, entry in ipairs(entries) do
    local sid, data = entry[1], entry[2][2]
    if #left == 0 and found[i][1] and records[i] == packed_location(priority, sid) then
      deliver_first(stream, sid, data, unpack(found[i]))
      handled_bytes = handled_bytes + #data
    else
      left[#left + 1] = entry
    end
  end
  return left
end

while not has_pauses and #left == 0 and priority >= 0 do
  local stream = stream_of(priority)
  local entries = (priority == 0 or redis.call('XLEN', stream) > 0) and next_entries(stream) or {}
  left = deliver_first_of(stream, entries)
  if #left == 0 and (count_wanted() == 0 or is_slice_full()) then
    return finish_deliveries(true)
  elseif #entries == 0 then
    priority = priority - 1
  end
end
if not has_pauses and #left == 0 then
  return finish_deliveries(true)
end

-- ---- Pauses, messages that were delivered before, and messages of other programs

-- Returns false at the end of the slice.
local function deliver_from(stream)
  repeat
    local entries = #left > 0 and left or next_entries(stream)
    local passed_over = {}
    left = {}
    for _, entry in ipairs(entries) do
      local id, record, data = read_entry(stream, entry[1], entry[2])
      handled_bytes = handled_bytes + #(data_of(entry[2]) or '')
      if id and is_paused(record.type) then
        park(id, record)
        passed_over[#passed_over + 1] = entry[1]
        handled = handled + 1
      elseif id then
        unindex(id, record)
        deliver(id, record, data)
      else
        handled = handled + 2
      end
    end
    if #passed_over > 0 then
      redis.call('XACK', stream, GROUP, unpack(passed_over))
    end
    if count_wanted() == 0 or is_slice_full() then
      return false
    end
  until #entries == 0
  return true
end

-- Returns the first parked message of a type and priority, or nil.
local function first_parked(kind, priority)
  return redis.call('ZRANGE', PARKED .. kind, '[' .. priority .. ':', '(' .. priority .. ';', 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- Claims a parked message for the group, as if it had been read in its turn.
local function deliver_parked(stream, kind, member)
  local id = string.match(member, '^%d+:[%d-]+:(.*)$')
  local record = record_of(id)
  local data = record and record.stream == stream and parked_member(id, record) == member
    and entry_at(stream, record.sid)
  local claimed = data and redis.pcall('XCLAIM', stream, GROUP, CONSUMER, 0, record.sid, 'FORCE', 'JUSTID')
  handled = handled + 1
  if data and claimed.err and string.sub(claimed.err, 1, 7) ~= 'NOGROUP' then
    error(claimed.err) -- such as a user without the permission
  elseif data and not claimed.err then
    unindex(id, record)
    deliver(id, record, data)
  else
    remove_parked(kind, member) -- another program has deleted the message, or the group, which reads it again then
  end
end

-- Delivers what is still parked of resumed types, which is older than what the group has not read. Returns false at the
-- end of the slice, or if no more is wanted.
local function deliver_resumed(stream)
  local priority, members = priority_of(stream), {}
  for kind, pause in pairs(pauses()) do
    members[kind] = pause == '' and first_parked(kind, priority) or nil
  end
  while next(members) and count_wanted() > 0 and not is_slice_full() do
    local oldest
    for kind, member in pairs(members) do
      oldest = oldest and members[oldest] < member and oldest or kind
    end
    deliver_parked(stream, oldest, members[oldest])
    members[oldest] = first_parked(oldest, priority)
  end
  return count_wanted() > 0 and not is_slice_full()
end

local is_complete = true
while is_complete and priority >= 0 do
  local stream = stream_of(priority)
  is_complete = (not has_pauses or deliver_resumed(stream))
    and (priority > 0 and redis.call('XLEN', stream) == 0 or deliver_from(stream))
  priority = priority - 1
end
return finish_deliveries(is_complete)
