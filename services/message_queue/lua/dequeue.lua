#!lua flags=allow-oom
-- Delivers the next messages to a consumer and locks them: highest priority first, then oldest. Messages of paused types
-- are parked instead.
--
-- KEYS[1]  queue name
-- ARGV and Returns: see delivery.lua. Fewer messages are returned if their payloads are large.
--
-- Atomic, so that a delivered message always has its attempt counted and its deadline set. allow-oom, so that a full
-- server can be drained.

local priority = ARGV[5] - 1
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
    return { schedule_sweep(tonumber(deadline), tonumber(ARGV[4])), 0, id, data, record }
  end
end

-- ---- Several messages

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

highest_priority = ARGV[5] - 1
local is_complete = true
while is_complete and priority >= 0 do
  local stream = stream_of(priority)
  is_complete = (not has_pauses or deliver_resumed(stream))
    and (priority > 0 and redis.call('XLEN', stream) == 0 or deliver_from(stream))
  priority = priority - 1
end
return finish_deliveries(is_complete)
