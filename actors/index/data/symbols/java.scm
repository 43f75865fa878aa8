(class_declaration name: (identifier) @name) @class
(record_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(annotation_type_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(superclass [(type_identifier) @super (generic_type (type_identifier) @super)])
(super_interfaces (type_list [(type_identifier) @super (generic_type (type_identifier) @super)]))
(extends_interfaces (type_list [(type_identifier) @super (generic_type (type_identifier) @super)]))
(method_invocation name: (identifier) @call)
(object_creation_expression type: (type_identifier) @call)
(import_declaration (scoped_identifier) @import)
[(line_comment) (block_comment)] @attach
