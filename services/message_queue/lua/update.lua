#!lua flags=allow-oom
-- Changes a message that is not being processed. A waiting one, and one that gets a new payload, moves to the tail of its
-- stream.
--
-- KEYS[1]  queue name
-- ARGV     id, required state ('' for any), changes as JSON (type, priority, custom_ack_timeout, custom_max_attempts;
--          null removes an option), type as JSON ('' to keep it), payload as JSON ('' to keep it)
-- Returns  data and record before the change, then those after it; 'NOT_FOUND' if it is not in that state, 'HELD' while
--          it is being processed, 'UNDECODABLE' if it cannot be decoded; nothing is written then
--
-- Atomic, so that no consumer receives the old message during the change. allow-oom, so that operators can make
-- messages of a full server smaller.

local id, from, changes, kind_json, payload = unpack(ARGV)

-- Returns an entry as enqueue.lua adds it: other programs read only entries.
local function entry_of(record, payload)
  kind_json = kind_json ~= '' and kind_json or string.gsub(cjson.encode(record.type), '\\/', '/')
  local options = ''
  for _, name in ipairs({ 'custom_ack_timeout', 'custom_max_attempts' }) do
    options = options .. (record[name] and '"' .. name .. '":' .. cjson.encode(record[name]) .. ',' or '')
  end
  return '{"id":' .. cjson.encode(id) .. ',"type":' .. kind_json .. ',"priority":' .. record.priority
    .. ',"created_at":' .. string.format('%.3f', record.created_at) .. ',' .. options .. '"payload":' .. payload .. '}'
end

local record = record_of(id)
local state = record and record.sid and state_of(record)
if not state or (from ~= '' and state ~= from) then
  return 'NOT_FOUND'
elseif state == 'processing' then
  return 'HELD'
elseif record.undecodable then
  return 'UNDECODABLE'
end
local data = entry_at(record.stream, record.sid)
if not data then
  return 'NOT_FOUND'
end
local reply = { data, cjson.encode(record) }
if state == 'main' then
  unindex(id, record)
end
local stream, sid = record.stream, record.sid
for name, value in pairs(cjson.decode(changes)) do
  record[name] = value ~= cjson.null and value or nil
end
if payload ~= '' then
  record.added = nil
  data = entry_of(record, payload)
elseif state == 'main' and waiting_record(stream, sid, data) then -- its payload is its last member
  data = entry_of(record, string.match(data, ',"payload":(.*)}$'))
end
if state == 'main' then
  requeue(id, record, data)
  redis.call('XDEL', stream, sid)
elseif payload ~= '' then
  append(stream, id, record, data)
  redis.call('XDEL', stream, sid)
end
save(id, record)
announce_ids('update', { id })
reply[3], reply[4] = data, cjson.encode(record)
return reply
