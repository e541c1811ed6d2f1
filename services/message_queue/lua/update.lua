#!lua flags=allow-oom
-- Changes a message that nobody is working on. With another payload or priority it goes to the tail of its stream.
--
-- ARGV     id, place it is in ('' for any), changes as JSON (type, priority, custom_ack_timeout, custom_max_attempts;
--          null takes an option away), type as JSON ('' to keep it), payload as JSON ('' to keep it)
-- Returns  'UPDATED'; 'NOT_FOUND' when it is not in that place, 'HELD' while a consumer has it, 'UNDECODABLE' when it
--          is no message: then nothing is written
--
-- Atomic, so that no consumer takes the old message while the new one is made. With allow-oom: an operator must be able
-- to mend what fills the server.

local id, from, changes, kind_json, payload = unpack(ARGV)
local record = record_of(id)
local place = record and record.sid and place_of(record)
if not place or (from ~= '' and place ~= from) then
  return 'NOT_FOUND'
elseif place == 'processing' then
  return 'HELD'
elseif record.undecodable then
  return 'UNDECODABLE'
end
local data = entry_at(record.stream, record.sid)
if not data then
  return 'NOT_FOUND'
end
if place == 'main' then
  unindex(id, record)
end
local stream, sid, priority = record.stream, record.sid, record.priority
for name, value in pairs(cjson.decode(changes)) do
  record[name] = value ~= cjson.null and value or nil
end
if payload ~= '' then
  record.added = nil
  kind_json = kind_json ~= '' and kind_json or cjson.encode(record.type)
  data = '{"id":' .. cjson.encode(id) .. ',"type":' .. kind_json .. ',"priority":' .. record.priority
    .. ',"created_at":' .. string.format('%.3f', record.created_at) .. ',"payload":' .. payload .. '}'
end
if payload ~= '' or (place == 'main' and record.priority ~= priority) then
  redis.call('XDEL', stream, sid)
  append(place == 'main' and stream_of(record.priority) or stream, id, record, data)
end
if place == 'main' then
  index(id, record)
end
save(id, record)
announce_ids('update', { id })
return 'UPDATED'
