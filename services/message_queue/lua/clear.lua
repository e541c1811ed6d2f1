#!lua flags=allow-oom
-- Deletes the messages of one place, or of all of them, in slices. What comes to a place after the first slice stays.
--
-- ARGV     place ('' for all), priority levels, state that an earlier slice returned ('' to begin)
-- Returns  {messages deleted by this slice, state for the next one or '' at the end}
--
-- Atomic, so that a message which moves meanwhile is deleted or kept as a whole, and counted once. With allow-oom: it
-- makes room.

local place, levels, state = unpack(ARGV)
local is_first = state == ''
local cleared = 0

local function last_added(stream)
  local about = redis.pcall('XINFO', 'STREAM', stream)
  for i = 1, about.err and 0 or #about, 2 do
    if about[i] == 'last-generated-id' then
      return about[i + 1]
    end
  end
  return '0-0'
end

-- Of each stream the last entry that is to be deleted.
local function begin()
  local steps, last = {}, {}
  for priority = 0, levels - 1 do
    local stream = stream_of(priority)
    if place == '' or place == 'main' then
      last[stream] = last_added(stream)
      steps[#steps + 1] = { 'waiting', stream }
    elseif place == 'processing' then
      last[stream] = (last_delivered(stream))
    end
  end
  if place == '' or place == 'processing' then
    last[TYPED] = last_added(TYPED)
    steps[#steps + 1] = { 'held', '0' }
  end
  for stream, name in pairs(PLACES) do
    if place == '' or place == name then
      last[stream] = last_added(stream)
      steps[#steps + 1] = { 'kept', stream }
    end
  end
  return { steps = steps, last = last }
end

local function is_behind(sid, last)
  return sortable(sid) > sortable(last)
end

-- Deletes entries of a stream that are read, whatever they are, and the records of those that are messages of ours.
local function delete(stream, entries, is_waiting_place)
  local sids, ids = {}, {}
  for i, entry in ipairs(entries) do
    local data, id = data_of(entry[2])
    sids[i], ids[i] = entry[1], identity(data, id) or ''
  end
  local mine = {}
  for i, said in ipairs(redis.call('HMGET', RECORDS, unpack(ids))) do
    local record = said and decoded(said)
    record = record and normal(record)
    if record and record.sid == sids[i] and record.stream == stream then
      mine[#mine + 1] = ids[i]
      if is_waiting_place then
        unindex(ids[i], record)
      end
    end
  end
  redis.call('XDEL', stream, unpack(sids))
  if #mine > 0 then
    redis.call('HDEL', RECORDS, unpack(mine))
    redis.call('ZREM', DEADLINES, unpack(mine))
    redis.call('SREM', PENDING, unpack(mine))
  end
  handled, cleared = handled + #entries, cleared + #entries
end

-- Each returns whether nothing is left to do.

local function clear_stream(stream, last, is_waiting_place)
  local after = is_waiting_place and '(' .. last_delivered(stream) or '-'
  repeat
    local entries, is_end = read_entries_of(stream, after, last)
    if #entries > 0 then
      delete(stream, entries, is_waiting_place)
      after = '(' .. entries[#entries][1]
    end
    if is_end then
      return true
    end
  until is_slice_full()
  return false
end

local function clear_held(step, last)
  repeat
    local answer = redis.call('ZSCAN', DEADLINES, step[2], 'COUNT', MAX_READ)
    step[2] = answer[1]
    for i = 1, #answer[2], 2 do
      local id = answer[2][i]
      local record = record_of(id)
      handled = handled + 1
      if not record or not record.sid then
        forget(id)
      elseif not last[record.stream] or not is_behind(record.sid, last[record.stream]) then
        if redis.call('XACK', record.stream, GROUP, record.sid) == 1 then
          cleared = cleared + redis.call('XDEL', record.stream, record.sid)
        end
        forget(id)
      end
    end
  until step[2] == '0' or is_slice_full()
  return step[2] == '0'
end

local function is_done(step, last)
  if step[1] == 'held' then
    return clear_held(step, last)
  end
  return clear_stream(step[2], last[step[2]], step[1] == 'waiting')
end

local left = is_first and begin() or cjson.decode(state)
while left.steps[1] and not is_slice_full() do
  if is_done(left.steps[1], left.last) then
    table.remove(left.steps, 1)
  end
end
if cleared > 0 or is_first then
  announce('clear', '{"count":' .. cleared .. ',"queue":"' .. (place ~= '' and place or 'all') .. '"}')
end
return { cleared, left.steps[1] and cjson.encode(left) or '' }
