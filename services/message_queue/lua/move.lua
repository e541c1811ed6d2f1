#!lua flags=allow-oom
-- Moves messages by hand from one place to another; a dead letter that goes back to the main queue is replayed.
--
-- ARGV     place they come from ('' for any), place they go to ('main', 'dead', 'archived' or 'acknowledged'), reason,
--          then the ids
-- Returns  for each id of this slice 'MOVED', 'NOT_FOUND' when it is not in that place (any more), or 'UNDECODABLE'
--          when it is no message that a consumer could take
--
-- Atomic, so that a message is in one place whatever dies; one that has gone is never added again. With allow-oom: a
-- full server must be drained.

local from, to, reason = unpack(ARGV, 1, 3)

-- A replayed message begins anew: it has all its attempts again, and remembers how it failed before.
local function begin_anew(record)
  local lives = record.history or {}
  if record.failed_at then
    lives[#lives + 1] = {
      attempt_count = record.attempt_count, failed_at = record.failed_at, last_error = record.last_error
    }
  end
  while #lives > REPLAYS_TOLD do
    table.remove(lives, 1)
  end
  record.history = #lives > 0 and lives or nil
  record.attempt_count, record.failed_at, record.acknowledged_at = 0, nil, nil
end

local function take_out(id, record, place)
  if place == 'processing' then
    return release(id, record)
  end
  local data = entry_at(record.stream, record.sid)
  if data then
    redis.call('XDEL', record.stream, record.sid)
    redis.call('XACK', record.stream, GROUP, record.sid) -- should another consumer hold it
    if place == 'main' then
      unindex(id, record)
    end
  end
  return data and without_end(record, data)
end

local function put_into(id, record, data, place)
  if to == 'main' then
    if place ~= 'processing' then
      begin_anew(record)
    end
    put_back(id, record, data)
  elseif to == 'dead' then
    bury(id, record, data, reason)
  elseif to == 'acknowledged' then
    remember(id, record, data)
  else
    append(ARCHIVED, id, record, data)
    save(id, record)
  end
end

local function move(id)
  local record = record_of(id)
  local place = record and record.sid and place_of(record)
  if not place or place == to or (from ~= '' and place ~= from) then
    return 'NOT_FOUND'
  end
  if record.undecodable and to == 'main' then
    return 'UNDECODABLE'
  end
  local data = take_out(id, record, place)
  if not data then
    return 'NOT_FOUND'
  end
  put_into(id, record, data, place)
  return 'MOVED'
end

local answers, moved = {}, {}
for i = 4, #ARGV do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  answers[#answers + 1] = move(ARGV[i])
  if answers[#answers] == 'MOVED' then
    moved[#moved + 1] = ARGV[i]
  end
end
if #moved > 0 then
  local counts = '{"count":' .. #moved .. ',"from":"' .. from .. '","to":"' .. to
  announce('move', counts .. '","ids":' .. array(moved) .. '}')
end
return answers
