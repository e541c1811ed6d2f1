#!lua flags=allow-oom
-- Pauses types of messages: they are no longer delivered, and wait. Pausing one again changes who did it and why.
--
-- KEYS[1]  queue name
-- ARGV     who pauses them and why as JSON members ('"by":"ada","reason":null'), maximum number of paused types, then the
--          types
-- Returns  1, or 0 if more types would be paused; nothing is written then
--
-- Atomic and independent of the number of messages: each is parked by the dequeue that reads it. allow-oom, so that
-- operators can stop the delivery while the server is full.

local count = 0
for _, pause in pairs(pauses()) do
  count = count + (pause ~= '' and 1 or 0)
end
for i = 3, #ARGV do
  count = count + (is_paused(ARGV[i]) and 0 or 1)
end
if count > tonumber(ARGV[2]) then
  return 0
end
for i = 3, #ARGV do
  redis.call('HSET', PAUSES, ARGV[i], '{"at":' .. NOW_MS .. ',' .. ARGV[1] .. '}')
  announce('pause', '{"count":0,"ids":[],"message_type":' .. cjson.encode(ARGV[i]) .. '}')
end
return 1
