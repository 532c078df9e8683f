"""How much of temp is held only by the order of instructions, from buffers and dependences."""
