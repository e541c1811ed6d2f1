#!lua flags=allow-oom
-- Looks through a slice of a place and tells which messages match, without reading them whole.
--
-- ARGV     place, priority levels, order, where an earlier slice ended ('' to begin), filter as JSON: as in list.lua;
--          the field of each match that is to be told, or '' to count them only
-- Returns  {matches as JSON: a list of [value or null, stream, sid], where to go on or '' at the end, entries that
--          matched, entries looked at}
--
-- Atomic, so that a message which moves meanwhile is in the slice once. See reading.lua for what bounds a slice.

local place, levels, order, cursor, filter, field = unpack(ARGV)
filter = cjson.decode(filter)
filter.search = filter.search and string.lower(filter.search)
local next_block = blocks(place, tonumber(levels), order, cursor, filter)
local found, matched, looked, ended = {}, 0, 0, ''

local function told(item)
  local value = item.id
  if field ~= 'id' then
    value = SAID[field](item.record)
  end
  return { value == nil and cjson.null or value, item.stream, item.sid }
end

repeat
  local block
  block, ended = next_block()
  read_records(block)
  looked = looked + #block
  for _, item in ipairs(block) do
    if is_wanted(item, filter, place) then
      matched = matched + 1
      if field ~= '' then
        found[matched] = told(item)
      end
    end
  end
until ended == '' or is_spent()
return { #found > 0 and cjson.encode(found) or '[]', ended, matched, looked }
