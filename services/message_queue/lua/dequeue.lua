#!lua flags=allow-oom
-- Delivers the next messages to a consumer and locks them: highest priority first, then oldest. Messages of paused types
-- are parked instead.
--
-- KEYS[1]  queue name
-- ARGV and Returns: see delivery.lua. Fewer messages are returned if their payloads are large.
--
-- Atomic, so that a delivered message always has its attempt counted and its deadline set. allow-oom, so that a full
-- server can be drained.

-- Returns false at the end of the slice.
local function deliver_from(stream)
  repeat
    local entries = next_entries(stream)
    local passed_over = {}
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
next_read = count_wanted() == 1 and 1 or next_read
local higher = {}
for priority = highest_priority, 1, -1 do
  higher[#higher + 1] = QUEUE .. '_p' .. priority
end
local is_complete = true
local has_pauses = next(pauses()) ~= nil
if #higher > 0 and (has_pauses or redis.call('EXISTS', unpack(higher)) > 0) then
  for _, stream in ipairs(higher) do
    is_complete = is_complete and (not has_pauses or deliver_resumed(stream))
    is_complete = is_complete and (redis.call('XLEN', stream) == 0 or deliver_from(stream))
  end
end
is_complete = is_complete and (not has_pauses or deliver_resumed(QUEUE))
return finish_deliveries(is_complete and deliver_from(QUEUE))
