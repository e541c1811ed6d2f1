#!lua flags=allow-oom
-- Deletes the messages of one state, or of all states, in slices. Messages added after the beginning are kept.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities, state ('' for all), progress: '' or 'begin', which deletes nothing, then as it was returned;
--          number of messages that were deleted meanwhile by other scripts
-- Returns  {number of messages deleted by this slice, progress for the next slice or '' at the end}
--
-- Atomic, so that a message that changes its state meanwhile is deleted or kept as a whole, and counted once.
-- allow-oom, because it frees memory.

local state, progress, others = unpack(ARGV, 2)
local cleared = 0

local function last_added(stream)
  return by_name(redis.pcall('XINFO', 'STREAM', stream))['last-generated-id'] or '0-0'
end

-- Records the last entry to delete of each stream.
local function begin()
  local steps, last = {}, {}
  for priority = 0, HIGHEST_PRIORITY do
    local stream = stream_of(priority)
    if state == '' or state == 'main' then
      last[stream] = last_added(stream)
      steps[#steps + 1] = { 'waiting', stream }
    elseif state == 'processing' then
      last[stream] = (last_delivered(stream))
    end
  end
  for kind in pairs((state == '' or state == 'main') and pauses() or {}) do
    steps[#steps + 1] = { 'parked', kind, 0 }
  end
  if state == '' or state == 'main' then
    last[MANUAL] = last_added(MANUAL)
    steps[#steps + 1] = { 'waiting', MANUAL }
  end
  if state == '' or state == 'processing' then
    last[TYPED] = last_added(TYPED)
    last[MANUAL] = state == '' and last[MANUAL] or (last_delivered(MANUAL))
    steps[#steps + 1] = { 'processing', '0' }
  end
  for stream, name in pairs(STATES_BY_STREAM) do
    if state == '' or state == name then
      last[stream] = last_added(stream)
      steps[#steps + 1] = { 'kept', stream }
    end
  end
  return { steps = steps, last = last }
end

local function is_after(sid, last)
  return sortable(sid) > sortable(last)
end

-- Deletes the given entries of a stream, and the records that belong to them.
local function delete(stream, entries, is_main)
  local sids, ids, texts = {}, {}, {}
  for i, entry in ipairs(entries) do
    local data, id = data_of(entry[2])
    sids[i], ids[i], texts[i] = entry[1], identity(data, id) or '', data or ''
  end
  local mine = {}
  for i, text in ipairs(redis.call('HMGET', RECORDS, unpack(ids))) do
    local record = text and record_at(text, stream, sids[i], texts[i])
    if record then
      mine[#mine + 1] = ids[i]
      if is_main then
        unindex(ids[i], record)
      end
    end
  end
  redis.call('XDEL', stream, unpack(sids))
  if #mine > 0 then
    forget(unpack(mine))
  end
  handled, cleared = handled + #entries, cleared + #entries
end

-- Each of the following functions returns true when nothing is left to do.

local function clear_stream(stream, last, is_main)
  local after = is_main and '(' .. last_delivered(stream) or '-'
  repeat
    local entries, is_end = read_entries_of(stream, after, last)
    if #entries > 0 then
      delete(stream, entries, is_main)
      after = '(' .. entries[#entries][1]
    end
    if is_end then
      return true
    end
  until is_slice_full()
  return false
end

-- Deletes the parked messages of a type; the third part of a step is the number of those that are kept.
local function clear_parked(step, ends)
  local key = PARKED .. step[2]
  repeat
    local member = redis.call('ZRANGE', key, step[3], step[3])[1]
    if not member then
      return true
    end
    local id = string.match(member, '^%d+:[%d-]+:(.*)$')
    local record = record_of(id)
    handled = handled + 1
    if not record or not record.sid or parked_member(id, record) ~= member then
      remove_parked(step[2], member)
    elseif ends[record.stream] and not is_after(record.sid, ends[record.stream]) then
      unindex(id, record)
      cleared = cleared + redis.call('XDEL', record.stream, record.sid)
      forget(id)
    else
      step[3] = step[3] + 1
    end
  until is_slice_full()
  return false
end

local function clear_processing(step, last)
  repeat
    local answer = redis.call('ZSCAN', DEADLINES, step[2], 'COUNT', MAX_READ)
    step[2] = answer[1]
    for i = 1, #answer[2], 2 do
      local id = answer[2][i]
      local record = record_of(id)
      handled = handled + 1
      if not record or not record.sid then
        forget(id)
      elseif not last[record.stream] or not is_after(record.sid, last[record.stream]) then
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
  if step[1] == 'processing' then
    return clear_processing(step, last)
  elseif step[1] == 'parked' then
    return clear_parked(step, last)
  end
  return clear_stream(step[2], last[step[2]], step[1] == 'waiting')
end

if progress == 'begin' then
  return { 0, cjson.encode(begin()) }
end
local left = progress == '' and begin() or cjson.decode(progress)
while left.steps[1] and not is_slice_full() do
  if is_done(left.steps[1], left.last) then
    table.remove(left.steps, 1)
  end
end
local is_end = not left.steps[1]
if cleared > 0 or is_end then
  local count = string.format('%d', cleared + (is_end and others or 0))
  announce('clear', '{"count":' .. count .. ',"queue":"' .. (state ~= '' and state or 'all') .. '"}')
end
return { cleared, left.steps[1] and cjson.encode(left) or '' }
