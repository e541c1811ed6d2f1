#!lua flags=allow-oom
-- Delivers the next message to a consumer and locks it: highest priority first, then oldest.
--
-- KEYS[1]  queue name
-- ARGV     lock token, consumer id, ack timeout in ms ('' for the message's own), default ack timeout in ms,
--          type ('' for any), priority levels, ms between periodic sweeps (0: no sweep can be scheduled), whether
--          other programs produce to the streams ('1' or '0')
-- Returns  {id, data, record, ms until a sweep that the caller must schedule, or 0}; false if no message waits; 1 if
--          the search reached the end of its slice and the caller must call again
--
-- Atomic, so that a delivered message always has its attempt counted and its deadline set. allow-oom, so that a full
-- server can be drained.

local token, consumer_id, own_timeout, default_timeout, kind, levels, sweep_period, is_shared = unpack(ARGV)
highest_priority = levels - 1

local function next_entry(stream)
  local read = { 'XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', 1, 'STREAMS', stream, '>' }
  local answer = redis.pcall(unpack(read))
  if answer and answer.err then
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    answer = redis.call(unpack(read))
  end
  return answer and answer[1][2][1]
end

local function deliver(id, record, data)
  record.attempt_count = record.attempt_count + 1
  record.lock_token, record.consumer_id = token, consumer_id ~= '' and consumer_id or nil
  record.dequeued_at, record.processing_started_at = NOW, NOW
  own_timeout = tonumber(own_timeout)
  record.custom_ack_timeout = record.custom_ack_timeout or (own_timeout and own_timeout / 1000)
  local timeout = own_timeout or (record.custom_ack_timeout or default_timeout / 1000) * 1000
  local deadline = NOW_MS + math.ceil(timeout)
  set_deadline(id, record, deadline)
  remember(record, 'delivered', string.format('%d %s', record.attempt_count, consumer_id))
  redis.call('SADD', PENDING, id)
  local text = cjson.encode(record)
  redis.call('HSET', RECORDS, id, text)
  announce('dequeue', '{"count":1,"ids":' .. array({ id }) .. ',"deadline":' .. deadline .. '}')
  return { id, data, text, schedule_sweep(deadline, tonumber(sweep_period)) }
end

local function of_any_type()
  for priority = levels - 1, 0, -1 do
    local stream = stream_of(priority)
    local entry = next_entry(stream)
    while entry do
      local id, record, data = read_entry(stream, entry[1], entry[2])
      if id then
        unindex(id, record)
        return deliver(id, record, data)
      end
      handled, handled_bytes = handled + 2, handled_bytes + #(data_of(entry[2]) or '')
      if is_slice_full() then
        return 1
      end
      entry = next_entry(stream)
    end
  end
  return false
end

-- Adds messages of other producers to the type indexes; only done when a type is requested. Returns true when all are.
local function index_others()
  for priority = levels - 1, 0, -1 do
    repeat
      if is_slice_full() then
        return false
      end
      local _, is_end = adopt_entries(stream_of(priority))
    until is_end
  end
  return true
end

local function of_type()
  local is_searched = is_shared == '0' or index_others()
  repeat
    local member = redis.call('ZPOPMIN', QUEUE .. ':type:' .. kind)[1]
    if not member then
      return not is_searched and 1
    end
    handled = handled + 1
    local id = string.match(member, '^[%d-]+:(.*)$')
    local record = record_of(id)
    local data = record and record.sid and index_member(id, record) == member and entry_at(record.stream, record.sid)
    if data and is_waiting(record) then
      redis.call('XDEL', record.stream, record.sid)
      append(TYPED, id, record, data)
      local entry
      repeat -- entries of other producers stay pending until heal.lua sets their deadline
        entry = next_entry(TYPED)
      until not entry or entry[1] == record.sid
      return deliver(id, record, data)
    end
  until is_slice_full()
  return 1
end

if kind == '' then
  return of_any_type()
end
return of_type()
