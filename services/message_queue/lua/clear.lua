#!lua flags=allow-oom
-- Deletes every message of one place, or of all of them.
--
-- ARGV     place ('' for all), priority levels
-- Returns  how many messages were deleted
--
-- Atomic, so that nothing which is enqueued meanwhile is deleted with the rest. With allow-oom: it makes room.

local place, levels = unpack(ARGV)
local PAGE = 500
local cleared = 0

local function clear_waiting(stream)
  local after = '(' .. last_delivered(stream)
  while true do
    local entries = redis.pcall('XRANGE', stream, after, '+', 'COUNT', PAGE)
    if entries.err or #entries == 0 then
      return
    end
    for _, entry in ipairs(entries) do
      local id = identity(data_of(entry[2]))
      local record = id and record_of(id)
      if record and record.sid == entry[1] then
        unindex(id, record)
        forget(id)
      end
      redis.call('XDEL', stream, entry[1])
      after = '(' .. entry[1]
    end
    cleared = cleared + #entries
  end
end

local function clear_held()
  for _, id in ipairs(redis.call('ZRANGE', DEADLINES, 0, -1)) do
    local record = record_of(id)
    if record and record.sid and release(id, record) then
      cleared = cleared + 1
    end
    forget(id)
  end
end

local function clear_kept(stream)
  local after = '-'
  repeat
    local entries = redis.call('XRANGE', stream, after, '+', 'COUNT', PAGE)
    for _, entry in ipairs(entries) do
      local id = identity(data_of(entry[2]))
      local record = id and record_of(id)
      if record and record.sid == entry[1] then
        forget(id)
      end
      after = '(' .. entry[1]
    end
    cleared = cleared + #entries
  until #entries == 0
  redis.call('DEL', stream)
end

local function clear(where)
  if where == 'main' then
    for priority = 0, levels - 1 do
      clear_waiting(stream_of(priority))
    end
  elseif where == 'processing' then
    clear_held()
  else
    clear_kept(({ dead = DEAD, acknowledged = ACKNOWLEDGED, archived = ARCHIVED })[where])
  end
end

for _, where in ipairs({ 'main', 'processing', 'dead', 'acknowledged', 'archived' }) do
  if place == '' or place == where then
    clear(where)
  end
end
announce('clear', '{"count":' .. cleared .. ',"queue":"' .. (place ~= '' and place or 'all') .. '"}')
return cleared
