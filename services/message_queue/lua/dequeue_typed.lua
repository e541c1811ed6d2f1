#!lua flags=allow-oom
-- Delivers the next messages of a type to a consumer and locks them: highest priority first, then oldest.
--
-- KEYS[1]  queue name
-- ARGV and Returns: see delivery.lua. Fewer messages are returned if their payloads are large.
--
-- The first consumer that asks for a type lets all waiting messages be indexed, slice by slice; from then on, indexes
-- are kept. Atomic, so that a delivered message always has its attempt counted and its deadline set. allow-oom, so that
-- a full server can be drained.

local kind, is_shared = ARGV[6], ARGV[7]

-- Indexes the messages that are in no index yet: those of other producers, and all at first. Returns true when all are.
local function index_others()
  local types = redis.call('GET', TYPES)
  if types == 'all' and is_shared == '0' then
    return true
  end
  if not types then
    redis.call('SET', TYPES, 'some')
    redis.call('DEL', SEARCHED)
  end
  index_kept = true
  for priority = HIGHEST_PRIORITY, 0, -1 do
    repeat
      if is_slice_full() then
        return false
      end
      local _, is_end = adopt_entries(stream_of(priority), is_shared == '0')
    until is_end
  end
  if types ~= 'all' then
    redis.call('SET', TYPES, 'all')
    if is_shared == '0' then
      redis.call('DEL', SEARCHED) -- it has passed over the messages of other producers
    end
  end
  return true
end

-- Moves an entry to the stream of typed messages, whose group can deliver it.
local function pass_on(id, record, data)
  local stream, sid = record.stream, record.sid
  append(TYPED, id, record, data)
  redis.call('XDEL', stream, sid)
  next_read = 1
  local entry
  repeat -- entries of other producers stay pending until heal.lua sets their deadline
    entry = next_entries(TYPED)[1]
  until not entry or entry[1] == record.sid
end

if is_paused(kind) then
  return finish_deliveries(true)
end
local is_complete = index_others()
repeat
  local member = redis.call('ZPOPMIN', QUEUE .. ':type:' .. kind)[1]
  if not member then
    break
  end
  handled = handled + 1
  local id = string.match(member, '^[%d-]+:(.*)$')
  local record = record_of(id)
  local data = record and record.sid and index_member(id, record) == member and entry_at(record.stream, record.sid)
  if data and is_waiting(id, record) then
    if pauses()[kind] then
      remove_parked(kind, parked_member(id, record))
    end
    pass_on(id, record, data)
    deliver(id, record, data)
  end
  is_complete = is_complete and not is_slice_full()
until count_wanted() == 0 or is_slice_full()
return finish_deliveries(is_complete)
