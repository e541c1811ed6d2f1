#!lua flags=allow-oom
-- Pauses a type of messages: they are no longer delivered, and wait. Pausing it again changes who did it and why.
--
-- KEYS[1]  queue name
-- ARGV     type, who pauses it and why as JSON members ('"by":"ada","reason":null'), maximum number of paused types
-- Returns  the time of the pause in ms, or 0 if too many others are paused; nothing is written then
--
-- Atomic and independent of the number of messages: each is parked by the dequeue that reads it. allow-oom, so that
-- operators can stop the delivery while the server is full.

local kind, about, most = unpack(ARGV)
local others = 0
for other, pause in pairs(pauses()) do
  others = others + (other ~= kind and pause ~= '' and 1 or 0)
end
if others >= tonumber(most) then
  return 0
end
redis.call('HSET', PAUSES, kind, '{"at":' .. NOW_MS .. ',' .. about .. '}')
announce('pause', '{"count":0,"ids":[],"message_type":' .. cjson.encode(kind) .. '}')
return NOW_MS
